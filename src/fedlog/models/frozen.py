"""Frozen bodies: their weights come from a file and are never trained; only the head is trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from fedlog.errors import InputError, prefix_errors
from fedlog.models.weights_file import BODY, METHOD

Factory = Callable[[], nn.Module]
FROZEN = "frozen:"  # in a body's name, before the file


class FrozenModule(nn.Module):
    """A module that stays in evaluation mode and has buffers instead of parameters, so that it is never trained."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        for layer in inner.modules():
            for name, value in list(layer.named_parameters(recurse=False)):
                delattr(layer, name)
                layer.register_buffer(name, value.detach())
        self.train(mode=False)

    def train(self, mode: bool = True) -> FrozenModule:
        """Stay in evaluation mode, without dropout and without updates of running statistics."""
        super().train(mode=False)
        return self

    def forward(self, inputs: Tensor) -> Tensor:
        """The features of the inputs."""
        features: Tensor = self.inner(inputs)
        return features


def refuse_trained_weights(path: Path) -> None:
    """Raise an InputError if a run of fedlog trained these weights, perhaps on the records to protect.

    If they were trained elsewhere, the file does not say on which data; the user has to know.
    """
    method = _read_metadata(path).get(METHOD)
    if method is not None:
        raise InputError(
            f"--privacy record needs a body that was not trained on private data, but the body in {path} was trained "
            f"by: {method}",
            hint="use a random body, one trained on public data, or --body-training dp-sgd",
        )


def name_architecture(name: str) -> str:
    """The body's name without a file's path: `frozen:FILE` becomes `frozen:` and the name of the body in the file.

    A clip after `@` is kept.
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
        raise InputError(f"cannot read weights from {path}: {error}", hint="give a safetensors file") from None


def make_frozen_factory(name: str, path: Path, find_factory: Callable[[str], Factory]) -> Factory:
    """A function that makes a frozen body from a safetensors file with its name and weights; a head there is ignored.

    `find_factory` returns the function that makes the body of a given name, before its weights are loaded.
    """
    with prefix_errors(f"body {name}"):
        inner_name, weights = _read_metadata(path).get(BODY), load_file(path)
    if inner_name is None or inner_name.startswith(FROZEN):
        raise InputError(
            f"body {name}: expected the metadata entry `{BODY}` with the body's name in {path}, found: {inner_name}",
            hint='save_file(tensors, path, metadata={"body": "mlp:64,64"})',
        )

    make_inner = find_factory(inner_name)

    def make() -> nn.Module:
        inner = make_inner()
        wanted = inner.state_dict()
        # The counter of batches has no effect in evaluation mode, and saved models do not have it.
        missing = sorted(key for key in wanted if key not in weights and not key.endswith("num_batches_tracked"))
        if missing:
            raise InputError(
                f"body {name}: expected the weights of {inner_name} in {path}, found none for: {missing[0]}",
                hint="save all weights of the network, for example those in module.state_dict()",
            )
        inner.load_state_dict({key: weights.get(key, wanted[key]) for key in wanted})
        return FrozenModule(inner)

    return make
