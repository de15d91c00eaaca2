"""A body whose weights come from a file and never move: only the head is learned on its features."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from fedlog.errors import InputError
from fedlog.models.weights_file import BODY, METHOD

Factory = Callable[[], nn.Module]
FROZEN = "frozen:"  # and the file, in a body's name


class Frozen(nn.Module):
    """A module that stays in evaluation mode, its parameters turned into buffers, which no optimiser trains."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        for layer in inner.modules():
            for name, value in list(layer.named_parameters(recurse=False)):
                delattr(layer, name)
                layer.register_buffer(name, value.detach())
        self.train(mode=False)

    def train(self, mode: bool = True) -> Frozen:
        """Stay in evaluation mode: no dropout, no running statistics."""
        super().train(mode=False)
        return self

    def forward(self, inputs: Tensor) -> Tensor:
        """The features."""
        features: Tensor = self.inner(inputs)
        return features


def refuse_trained(path: Path) -> None:
    """Refuse weights that a run of fedlog wrote: they were trained on records, perhaps on the protected ones.

    A file cannot tell whether its weights were trained elsewhere on the private data; the user has to know.
    """
    method = _read_metadata(path).get(METHOD)
    if method is not None:
        raise InputError(
            f"single records are protected behind bodies that never saw private data, and the body in {path} comes "
            f"from a run of: {method}",
            hint="a random body, or one from public data; `fedlog run --body-training dp-sgd` trains one under noise",
        )


def architecture(name: str) -> str:
    """The architecture behind a body's name; for a frozen body the same wherever its file lies.

    The clip behind the `@`, if there is one, stays.
    """
    plain, at, clip = name.partition("@")
    if not plain.startswith(FROZEN):
        return name
    return f"{FROZEN}{_read_metadata(Path(plain.removeprefix(FROZEN))).get(BODY)}{at}{clip}"


def _read_metadata(path: Path) -> dict[str, str]:
    try:
        with safe_open(path, framework="pt") as file:
            return dict(file.metadata() or {})
    except (OSError, SafetensorError) as error:
        raise InputError(f"no weights can be read from {path}: {error}") from None


def make_frozen_factory(name: str, path: Path, factory: Callable[[str], Factory]) -> Factory:
    """How to make the body whose name and weights a safetensors file holds; entries such as a head are ignored."""
    try:
        with safe_open(path, framework="pt") as file:
            inner_name = (file.metadata() or {}).get(BODY)
            weights = {entry: file.get_tensor(entry) for entry in file.keys()}  # noqa: SIM118 (not a mapping)
    except (OSError, SafetensorError) as error:
        raise InputError(f"body {name}: no weights can be read from {path}: {error}") from None
    if inner_name is None or inner_name.startswith(FROZEN):
        raise InputError(
            f"body {name}: expected the metadata entry `{BODY}` with the body's name in {path}, found: {inner_name}",
            hint='save_file(tensors, path, metadata={"body": "mlp:64,64"})',
        )

    make_inner = factory(inner_name)

    def make() -> nn.Module:
        inner = make_inner()
        wanted = inner.state_dict()
        # A counter of batches has no effect in evaluation mode, and saved models leave it out.
        missing = sorted(key for key in wanted if key not in weights and not key.endswith("num_batches_tracked"))
        if missing:
            raise InputError(
                f"body {name}: expected the weights of {inner_name} in {path}, found none for: {missing[0]}"
            )
        inner.load_state_dict({key: weights.get(key, wanted[key]) for key in wanted})
        return Frozen(inner)

    return make
