"""Save and load trained models: a site's model in its own folder, or all models of a simulated run in one folder.

    model = load_model(Path("north/models/run-1"))      # of a site
    model = load_model(Path("runs/mine/models/north"))  # of a client in a simulated run

A site's folder has `model.safetensors` (all parameters, with the head), `model.json` (the body's name, the scaling of
images, provenance), `schema.toml`, and for tables `encoder.json` (medians and scales of the site's training records).
A run's folder has one parameter file for each client, and `models.json` and `schema.toml` for all clients.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.torch import load_file

from fedlog.data.schema import Schema, dump_schema, load_schema
from fedlog.data.transforms import Transform
from fedlog.errors import InputError, add_default_hint
from fedlog.files.durable import write_file
from fedlog.files.json_text import parse_json, write_json
from fedlog.models.body import HEAD, RESERVED, Body
from fedlog.models.catalog import check_loaded_body, make_body
from fedlog.models.model import UNSEEN, Model
from fedlog.models.weights_file import name_weights_file, write_weights

if TYPE_CHECKING:
    from fedlog.data.tables import TableEncoder  # not at run time, because polars is slow to import

VERSION = 1
WEIGHTS, DESCRIPTION, SCHEMA, ENCODER = "model.safetensors", "model.json", "schema.toml", "encoder.json"
RUN_DESCRIPTION = "models.json"
TRAINED_BY = "a federation"  # marks weights as trained, so that `refuse_trained_weights` can refuse them
REPORT = "report.json"  # in a site's model folder: metrics that stay at the site


def save_model(folder: Path, model: Model) -> Path:
    """Write the model into this folder, replacing its model if there is one; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(folder / WEIGHTS, model.params, TRAINED_BY)
    described = {"version": VERSION, **_describe_model(model), "provenance": dict(model.provenance)}
    write_json(folder / DESCRIPTION, described)
    write_file(folder / SCHEMA, dump_schema(model.schema))
    if model.encoder is not None:
        write_file(folder / ENCODER, model.encoder.to_json() + "\n")
    return folder


def read_unseen_classes(folder: Path, model: Model) -> list[str]:
    """The classes without a training record at the model's site, from its provenance or the folder's `report.json`."""
    found = model.provenance.get(UNSEEN)
    if found is None and (folder / REPORT).exists():
        found = json.loads((folder / REPORT).read_text()).get(UNSEEN)
    return [str(name) for name in found] if isinstance(found, list) else []


def save_run_models(folder: Path, models: Mapping[str, Model]) -> None:
    """Write the models of a run's clients into one folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for client, model in models.items():
        write_weights(folder / name_weights_file(client), model.params, TRAINED_BY)
    write_run_description(folder, models, {client: client for client in models})


def write_run_description(folder: Path, models: Mapping[str, Model], weights_of: Mapping[str, str]) -> None:
    """Write `models.json` and `schema.toml` of a run's models.

    `weights_of` maps each client to the client whose weights file it uses, since clients may share one model.
    """
    clients = {
        client: {
            **_describe_model(model),
            "weights": name_weights_file(weights_of[client]),
            "encoder": None if model.encoder is None else parse_json(model.encoder.to_json()),
        }
        for client, model in models.items()
    }
    first = next(iter(models.values()))
    described = {"version": VERSION, "provenance": dict(first.provenance), "clients": clients}
    write_file(folder / SCHEMA, dump_schema(first.schema))
    write_json(folder / RUN_DESCRIPTION, described)


def list_model_names(folder: Path) -> tuple[str, ...]:
    """The clients that have a model in a run's folder of models; empty if the run saved none."""
    return tuple(_read_run_description(folder)["clients"]) if (folder / RUN_DESCRIPTION).exists() else ()


def _read_run_description(folder: Path) -> dict[str, Any]:
    """The content of a run's `models.json`; InputError if it has another version."""
    described: dict[str, Any] = parse_json((folder / RUN_DESCRIPTION).read_text())
    _check_version(described, folder)
    return described


def _check_version(described: Mapping[str, Any], folder: Path) -> None:
    if described["version"] != VERSION:
        raise InputError(f"expected a model folder of version {VERSION}, found {described['version']}: {folder}")


def locate_client_model(folder: Path, client: str) -> Path:
    """The path of a client's model for `load_model`, in a run's folder of models."""
    plain = Path(client).name == client  # not so with a slash in it
    return folder / (client if plain else name_weights_file(client).removesuffix(".safetensors"))


@add_default_hint("load it with the version of fedlog that saved it")
def load_model(path: Path) -> Model:
    """Load the model in a site's model folder, or that of a client in a run's folder, `RUN/models/CLIENT`.

    Raise an InputError that names the part that is missing or wrong.
    """
    with _refuse_damaged_files(path):
        if not (path / DESCRIPTION).exists() and (path.parent / RUN_DESCRIPTION).exists():
            return _load_from_run(path.parent, _find_client(path))
        described = parse_json((path / DESCRIPTION).read_text())
        _check_version(described, path)
        schema = load_schema(path / SCHEMA)
        encoder = _parse_table_encoder((path / ENCODER).read_text(), schema) if (path / ENCODER).exists() else None
        return _assemble_model(path / WEIGHTS, described, schema, encoder, described.get("provenance", {}))


@add_default_hint("load them with the version of fedlog that saved them")
def load_models(folder: Path) -> dict[str, Model]:
    """All models in a run's folder of models, by client; clients with the same body share one body object.

    Raise an InputError that names the part that is missing or wrong.
    """
    bodies: dict[str, Body] = {}
    with _refuse_damaged_files(folder):
        return {client: _load_from_run(folder, client, bodies) for client in list_model_names(folder)}


@contextmanager
def _refuse_damaged_files(path: Path) -> Iterator[None]:
    """Raise an InputError that names the path in place of errors from reading its files."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise InputError(
            f"expected a model folder, found: {path} ({type(error).__name__}: {error})",
            hint=_make_wrong_path_hint(path),
        ) from None


def _load_from_run(folder: Path, client: str, bodies: dict[str, Body] | None = None) -> Model:
    described = _read_run_description(folder)
    own = described["clients"][client]
    schema = load_schema(folder / SCHEMA)
    encoder = None if own["encoder"] is None else _parse_table_encoder(json.dumps(own["encoder"]), schema)
    return _assemble_model(folder / own["weights"], own, schema, encoder, described["provenance"], bodies)


def _find_client(path: Path) -> str:
    """The client of a path `RUN/models/CLIENT`, in which CLIENT is the client's name or that of its weights file."""
    for client in list_model_names(path.parent):
        file = name_weights_file(client)
        if path.name in (client, f"{client}.safetensors", file, file.removesuffix(".safetensors")):
            return client
    raise InputError(
        f"expected the model of a client in {path.parent}, found none for: {path.name}",
        hint=_make_model_list_hint(path.parent),
    )


def _parse_table_encoder(text: str, schema: Schema) -> TableEncoder:
    from fedlog.data.tables import TableEncoder

    return TableEncoder.from_json(text, schema)


def _make_wrong_path_hint(path: Path) -> str:
    """Make the hint for a path without a model: the models of a run in this folder, else where models usually are."""
    for folder in (path, path / "models"):
        with suppress(ValueError, KeyError, TypeError, InputError):  # the description itself may be damaged
            if (folder / RUN_DESCRIPTION).exists():
                return _make_model_list_hint(folder)
    return "a site's model is in SITE/models/RUN, a model of a simulated run in RUN/models/CLIENT"


def _make_model_list_hint(folder: Path) -> str:
    """Make the hint that lists the paths of (at most five) models in a run's folder of models."""
    names = list_model_names(folder)
    more = ", ..." if len(names) > 5 else ""
    return f"name one of its models: {', '.join(str(locate_client_model(folder, name)) for name in names[:5])}{more}"


def _describe_model(model: Model) -> dict[str, Any]:
    described = {
        "body": model.body.name,
        "mean": list(model.transform.mean),
        "std": list(model.transform.std),
    }
    return {**described, "labels": list(model.labels)} if model.labels else described


def _assemble_model(
    weights: Path,
    described: Mapping[str, Any],
    schema: Schema,
    encoder: TableEncoder | None,
    provenance: Mapping[str, Any],
    bodies: dict[str, Body] | None = None,
) -> Model:
    """The model made from its weights file and description; bodies are taken from `bodies` by name, or added there."""
    check_loaded_body(str(described["body"]), weights.parent)
    params = load_file(weights)
    transform = Transform(mean=tuple(described["mean"]), std=tuple(described["std"]))
    made, name = {} if bodies is None else bodies, described["body"]
    if name not in made:
        made[name] = make_body(name, schema.shape)
    body = made[name]
    expected = {parameter for layer in body.layers for parameter in layer}
    found = set(params) - set(RESERVED)
    if expected != found or HEAD not in params or tuple(params[HEAD].shape) != (schema.n_class, 1 + body.width):
        raise InputError(
            f"expected the parameters of body {body.name} and a head for {schema.n_class} classes in "
            f"{weights}, found: {', '.join(sorted(params))}"
        )
    return Model(body, params, schema, encoder, transform, provenance, tuple(described.get("labels", ())))
