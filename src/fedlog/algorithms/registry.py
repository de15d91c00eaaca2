"""All methods by name, and their options."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass, replace
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import msgspec

from fedlog.algorithms import averaging, proximal
from fedlog.algorithms.csfl import CSFL
from fedlog.algorithms.feddbe import FedDBE
from fedlog.algorithms.fedlog import FedLog, FedLogC
from fedlog.algorithms.fedproto import FedProto
from fedlog.algorithms.interface import Algorithm, ModelPlan, Schedule
from fedlog.algorithms.one_exchange.fed_cof import FedCOF
from fedlog.algorithms.one_exchange.fed_heads import FedHeads
from fedlog.algorithms.one_exchange.fed_regression import FedRegression
from fedlog.algorithms.one_exchange.heads_from_drawn_features import CCVR, FedPFT
from fedlog.algorithms.one_exchange.solved_heads import FedLDA, FedLogOnce, FedNB, FedNCM, FedQDA, FedRidge
from fedlog.errors import InputError
from fedlog.files.names import did_you_mean, import_callable, register_callable
from fedlog.models.body import HEAD

Factory = Callable[..., Algorithm]

ONE_EXCHANGE = (FedLogOnce, FedNCM, FedLDA, FedNB, FedQDA, FedRidge, FedCOF, CCVR, FedPFT, FedHeads, FedRegression)
METHODS: dict[str, Factory] = {
    "fedlog": cast(Factory, FedLog),
    "fedlog-c": cast(Factory, FedLogC),
    "local": averaging.local,
    "pooled": averaging.pooled,
    "fedavg": averaging.fedavg,
    "lg-fedavg-1": averaging.lg_fedavg_1,
    "lg-fedavg-2": averaging.lg_fedavg_2,
    "fedper": averaging.fedper,
    "fedrep": averaging.fedrep,
    "cs-fl": cast(Factory, CSFL),
    "fedbabu": averaging.fedbabu,
    "fedproto": cast(Factory, FedProto),
    "feddbe": cast(Factory, FedDBE),
    "fedprox": proximal.fedprox,
    "ditto": proximal.ditto,
    **{kind.name: cast(Factory, kind) for kind in ONE_EXCHANGE},
}


def find_methods(condition: Callable[[Algorithm], bool]) -> tuple[str, ...]:
    """The names of the registered methods for which `condition(method)` is true."""
    layers = (("first",), ("second",), (HEAD,))
    plan = ModelPlan(n_class=2, width=2, layers=layers, n_entries=10)
    return tuple(name for name, make in METHODS.items() if condition(make(plan)))


def find_method_name(method: str | Factory) -> str:
    """The method's name in settings and result files; `method` is this name, or the class or function that makes it."""
    if isinstance(method, str):
        return method
    if not callable(method):
        raise InputError(
            f"expected a method's name or class, found an object of type: {type(method).__name__}",
            hint="give the class, not an instance: fedlog makes the instance for the federation's model",
        )
    known = {made: name for name, made in METHODS.items()}
    return known.get(method) or register_callable(method)


def find_factory(method: str) -> Factory:
    """The class or function that makes the method; a name `package.module:name` imports a user's own method."""
    if method in METHODS:
        return METHODS[method]
    if method.partition(":")[2]:
        return cast(Factory, import_callable(method, "method"))
    meant = did_you_mean(method, METHODS, f"one of {', '.join(METHODS)}")
    raise InputError(f"unknown method: {method}", hint=meant)


def find_method_rounds(method: str) -> int | None:
    """The number of rounds that a method needs (1 for one-exchange methods); None if the user chooses the number."""
    found = getattr(find_factory(method), "rounds", None)
    return found if isinstance(found, int) else None


def list_options(method: str) -> dict[str, Any]:
    """The method's options, with their defaults."""
    parameters = inspect.signature(find_factory(method)).parameters
    wrong = [p.name for p in parameters.values() if p.name != "plan" and p.default is p.empty]
    if "plan" not in parameters or wrong:
        raise InputError(
            f"method {method} must take a `plan` and options with defaults, found: ({', '.join(parameters)})",
            hint="write a frozen dataclass with a `plan: ModelPlan`, as in docs/extend/method.md",
        )
    return {p.name: p.default for p in parameters.values() if p.name != "plan"}


def read_options(method: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options converted from numbers or text to their types; InputError for an unknown option or a wrong value."""
    make = find_factory(method)
    known = list_options(method)
    hints = _find_option_types(make)
    typed = {}
    for name, value in given.items():
        if name not in known:
            meant = did_you_mean(name, known, f"its options are {', '.join(known)}")
            raise InputError(f"method {method} has no option {name}", hint=meant)
        typed[name] = _read_option(method, name, value, hints.get(name, type(known[name])))
    return typed


def make_method(method: str, plan: ModelPlan, given: Mapping[str, Any]) -> Algorithm:
    """Make the method for models with this plan, and with the `given` options."""
    make = find_factory(method)
    _refuse_incomplete_method(method, sorted(getattr(make, "__abstractmethods__", ())))
    made = make(plan, **read_options(method, given))
    _refuse_incomplete_method(
        method, [name for name in ("name", *vars(Algorithm)) if name[0] != "_" and not hasattr(made, name)]
    )
    return made


def freeze_bodies(algorithm: Algorithm) -> Algorithm:
    """The method without its training phases; InputError if it sends no statistics."""
    if not algorithm.sends_statistics:
        able = ", ".join(find_methods(lambda method: method.sends_statistics))
        raise InputError(
            f"method {algorithm.name} cannot be used with frozen bodies: it sends no statistics",
            hint=f"use one of: {able}",
        )
    return cast(Algorithm, _MethodWithoutTraining(algorithm))


class _MethodWithoutTraining:
    """A method without its training phases; everything else is passed on to the method."""

    def __init__(self, algorithm: Algorithm) -> None:
        self._algorithm = algorithm

    def __getattr__(self, name: str) -> Any:
        return getattr(self._algorithm, name)

    @property
    def schedule(self) -> Schedule:
        """The method's schedule with every training phase taken out."""
        schedule = self._algorithm.schedule
        opening = None if schedule.opening is None else replace(schedule.opening, phases=())
        round_without = tuple(replace(exchange, phases=()) for exchange in schedule.round)
        return replace(schedule, opening=opening, round=round_without, closing=())


def _refuse_incomplete_method(method: str, missing: list[str]) -> None:
    if missing:
        raise InputError(
            f"method {method} is incomplete: it lacks {', '.join(missing)}",
            hint="inherit from fedlog.algorithms.interface.Algorithm, and see docs/extend/method.md",
        )


@cache
def _find_option_types(make: Factory) -> dict[str, Any]:
    """The annotated types of the options, by name."""
    sources: list[Any] = [make.__init__ if inspect.isclass(make) else make]
    if is_dataclass(make):
        sources.insert(0, make)  # annotations of a base class are looked up in that class's module
    hints: dict[str, Any] = {}
    for source in sources:
        with contextlib.suppress(NameError):  # a name may be imported for type checkers only
            hints |= get_type_hints(source)
    return hints


def _read_option(method: str, name: str, value: Any, annotation: Any) -> Any:
    """The value as the option's type, from a number or from text; unchanged if the type is unknown."""
    accepted = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    if NoneType in accepted and (value is None or value == "none"):
        return None
    kind = next((kind for kind in accepted if kind is not NoneType), Any)
    if get_origin(kind) is not Literal and not (inspect.isclass(kind) and issubclass(kind, Enum | int | float | str)):
        return value
    try:
        found = msgspec.convert(value, kind, strict=False)
        if isinstance(found, float) and not math.isfinite(found):
            raise ValueError
        if isinstance(found, bool) and str(value).lower() not in ("true", "false"):
            raise ValueError  # msgspec also takes 0 and 1, which may be meant as numbers
    except ValueError:
        raise InputError(
            f"option {name} of {method} cannot be {value!r}", hint=f"expected {_describe_type(kind)}"
        ) from None
    return found


def _describe_type(kind: Any) -> str:
    """The values that an option of that type can have, in words."""
    if get_origin(kind) is Literal:
        return f"one of {', '.join(str(choice) for choice in get_args(kind))}"
    if kind is bool:
        return "true or false"
    return f"one of {', '.join(k.value for k in kind)}" if issubclass(kind, Enum) else str(kind.__name__)
