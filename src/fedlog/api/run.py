"""`fedlog.run`: train one method on one federation, in memory or in a folder."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedlog.algorithms import registry
from fedlog.api.progress import make_progress_callbacks
from fedlog.api.result import Result
from fedlog.data.catalog import load_federation
from fedlog.data.federation import Federation
from fedlog.errors import InputError
from fedlog.experiments.compare.variants import check_options
from fedlog.experiments.run.callbacks import Callback
from fedlog.experiments.run.execute import execute
from fedlog.files.argument_types import check_argument_types
from fedlog.files.flag_rewriting import rewrite_flags_in_errors
from fedlog.models.catalog import name_body
from fedlog.settings.fields import find_setting_types
from fedlog.settings.presets import apply_recipe
from fedlog.settings.resolve import resolve
from fedlog.settings.spec import RunSpec, make_spec

Body = str | nn.Module | Callable[..., nn.Module]


@rewrite_flags_in_errors()
@check_argument_types
def run(
    data: Federation | str,
    method: str | registry.Factory = "fedlog",
    *,
    body: Body | Sequence[Body] | Mapping[str, Body] | None = None,
    out: str | Path | None = None,
    callbacks: Iterable[Callback] = (),
    progress: bool | None = None,
    **settings: Any,
) -> Result:
    """Train one method on one federation, and return the outcome.

    Args:
        data: a `Federation`, or the name of a data set (`digits`, `mnist`, `sites:FOLDER`, `package.module:function`).
        method: a method's name, or a class (or function) that makes an `Algorithm` from a `ModelPlan`.
        body: the feature extractor: a name (`mlp:64,32`), an `nn.Module` (every client starts from its parameters), or
            a function that returns a module and may have the parameters `input_shape` and `width`. A list is dealt out
            among the clients, and a mapping names the body of each client.
        out: a folder for the run. An interrupted run in it is continued, a finished one is returned, and a run on other
            data or with other settings is refused. Without it everything stays in memory.
        callbacks: `Callback` objects that are called when the run begins, after each round, and at the end.
        progress: whether to show progress; by default in terminals and notebooks.
        settings: `rounds`, `seed`, `batch_size`, `codec`, `privacy`, ...: every setting of `fedlog run` by its name,
            and the options of the method, such as `epochs` and `learning_rate`.

    Returns:
        The outcome: accuracies, bits, the history by round, and a model for each client.

    """
    federation = data if isinstance(data, Federation) else None
    name = data.name if isinstance(data, Federation) else data
    check_data(data)
    called = [*make_progress_callbacks(progress), *check_callbacks(callbacks)]
    spec = _make_spec(name, method, settings)
    spec = replace(spec, body=make_body_names(body, lambda: find_input_shape(spec, federation)))
    with open_run_folder(out) as folder:
        execute(spec, folder, called, federation=federation)
        found = Result.read(folder)
        return found.keep_in_memory() if out is None else found


@contextmanager
def open_run_folder(out: str | Path | None) -> Iterator[Path]:
    """Yield the folder `out` or, for None, a temporary folder that is removed at the end of the `with` block.

    PyTorch's number of threads is restored at the end, because a run changes it.
    """
    threads = torch.get_num_threads()
    try:
        if out is not None:
            yield Path(out)
            return
        with tempfile.TemporaryDirectory(prefix="fedlog-") as folder:
            yield Path(folder) / "run"
    finally:
        torch.set_num_threads(threads)


def check_data(data: object) -> None:
    """Raise InputError unless the data are a `Federation` or the name of a data set."""
    if not isinstance(data, Federation | str):
        raise InputError(
            f"expected a Federation, or the name of a data set, found: {type(data).__name__}",
            hint='fedlog.Federation.from_arrays({"north": (X, y), "south": (X, y)}) makes one',
        )


def check_callbacks(given: Iterable[Callback]) -> tuple[Callback, ...]:
    """Return the callbacks as a tuple; InputError if one of them is not a `Callback`."""
    found = tuple(given)
    for each in found:
        if not isinstance(each, Callback):
            raise InputError(
                f"expected a fedlog.Callback, found: {each!r}",
                hint="pass an object of a class that derives from fedlog.Callback",
            )
    return found


def _make_spec(data: str, method: str | registry.Factory, settings: Mapping[str, Any]) -> RunSpec:
    """Make the specification of a run from keyword arguments, which are settings or options of the method."""
    name = registry.find_method_name(method)
    check_options([name], settings)
    given = separate_options(settings)
    return apply_recipe(make_spec({**given, "data": data, "method": name}, "fedlog.run"), given)


def separate_options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with every argument that is not a setting moved into `options`, the method's options."""
    known = find_setting_types(RunSpec)
    given: dict[str, Any] = {key: value for key, value in settings.items() if key in known}
    given |= {key: str(value) for key, value in given.items() if isinstance(value, Path)}
    own = {key: value for key, value in settings.items() if key not in known}
    return {**given, "options": {**given.get("options", {}), **own}}


def make_body_names(body: Any, input_shape: Callable[[], tuple[int, ...]]) -> tuple[str, ...]:
    """Turn the argument `body` of `fedlog.run` into names of bodies.

    `body` is a name, a module or a function, a list of these, or a mapping from client to one of these.
    """
    if body is None:
        return ()
    if isinstance(body, Mapping):
        return tuple(f"{client}={_make_body_name(each, input_shape)}" for client, each in body.items())
    several = body if isinstance(body, list | tuple) else [body]
    return tuple(_make_body_name(each, input_shape) for each in several)


def _make_body_name(body: Body, input_shape: Callable[[], tuple[int, ...]]) -> str:
    return body if isinstance(body, str) else name_body(body, input_shape())


def find_input_shape(spec: RunSpec, federation: Federation | None) -> tuple[int, ...]:
    """Return the shape of one record of the run's data."""
    return (federation or load_federation(resolve(spec).data)).input_shape
