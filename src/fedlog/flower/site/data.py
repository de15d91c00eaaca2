"""Load a site's data and body as its settings name them, for the check at the start and for every round."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import torch
from torch import nn

from fedlog.core.keys import Key
from fedlog.data.rows import BadRowPolicy
from fedlog.data.schema import Schema, load_schema
from fedlog.data.site import RowPreparation, Site, load_site, make_split_key
from fedlog.data.split import HeldOutShares
from fedlog.errors import InputError
from fedlog.flower.folders.site_folder import SiteConfig, SiteFolder
from fedlog.flower.site.site_release_log import read_privacy_requirement
from fedlog.models.body import Body
from fedlog.models.catalog import make_body
from fedlog.models.encoders.federation import encode_federation
from fedlog.models.encoders.names import IDENTITY, find_encoded_shape, fingerprint_encoder, split_name
from fedlog.models.frozen import FROZEN, name_architecture, refuse_trained_weights
from fedlog.privacy.guarantee import Unit

DEFAULT_BODY = "mlp:64,64"


def load_data(
    folder: SiteFolder,
    config: SiteConfig,
    preparation: RowPreparation = RowPreparation.TOGETHER,
    bad_rows: BadRowPolicy = BadRowPolicy.REFUSED,
) -> Site:
    """Load the site's data, split and scaled; an encoder's features replace the inputs if the body is an encoder.

    `preparation` says whether rows are scaled and held out together or each by itself; `bad_rows` says what to do about
    rows that cannot be used.
    """
    if config.data is None:
        raise InputError(
            f"expected data for site {config.name}, found none: {folder.config_file}",
            hint=f"name the data: `fedlog federate site {folder.path} --data DATA`",
        )
    schema, body = load_schema(folder.schema_file), config.body or DEFAULT_BODY
    _refuse_wide_image_range(schema, body)
    key = make_split_key(config.name)
    site = load_site(
        config.data, schema, config.name, key, parse_held_out_shares(config.hold_out), preparation, bad_rows
    )
    return replace(site, federation=encode_federation(site.federation, body))


def _refuse_wide_image_range(schema: Schema, body: str) -> None:
    """Raise InputError if the body is an image encoder, and the schema allows pixel values outside of 0 to 1.

    The schema is checked and not the rows: in a private run, a single row must not decide whether data are refused.
    """
    parts, agreed = split_name(body), schema.input_range
    if parts is None or parts.encoder == IDENTITY or agreed is None or len(schema.input_shape) != 3:
        return
    if agreed[0] < 0 or agreed[1] > 1:
        raise InputError(
            f"expected pixel values from 0 to 1 for an image encoder, found in the schema: range = [{agreed[0]:g}, "
            f"{agreed[1]:g}]",
            hint="divide the images by the largest value that a pixel can have, and agree on range = [0, 1]",
        )


def parse_held_out_shares(text: str | None) -> HeldOutShares:
    """Read the shares of the rows for validation and test from `VALIDATION,TEST`; None gives the defaults."""
    if text is None:
        return HeldOutShares()
    try:
        validation, test = map(float, text.split(","))
    except ValueError:
        raise InputError(
            f"expected the shares VALIDATION,TEST, as in 0.2,0.2, found: {text!r}", hint="--hold-out 0.2,0.2"
        ) from None
    return HeldOutShares(validation, test)


def load_body(config: SiteConfig, input_shape: tuple[int, ...], clip: str | None = None) -> Body:
    """Make the site's body for records of this shape; `clip`, such as `l2:2`, is the run's clip of the features.

    A body that is an encoder gets the encoder's features as inputs: `load_data` has put them in place of the records.
    """
    name = config.body or DEFAULT_BODY
    if clip is not None and "@" in name:
        raise InputError(
            f"expected a body without a clip, since the run has the clip {clip}, found: {name}",
            hint=f"--body {name.partition('@')[0]}",
        )
    return make_body(name if clip is None else f"{name}@{clip}", find_encoded_shape(name, input_shape))


def refuse_trained_body(config: SiteConfig) -> None:
    """Raise InputError for a frozen body whose file says that a run has trained it."""
    name = config.body or DEFAULT_BODY
    if name.startswith(FROZEN):
        refuse_trained_weights(Path(name.removeprefix(FROZEN)))


def refuse_body_that_mixes_records(body: Body) -> None:
    """Raise InputError for a body in which the records of a batch influence each other.

    Batch normalisation cannot train on one record, and its error would tell the server how many records there are. Nor
    does the privacy accounting cover the running means that batch normalisation keeps.
    """
    norms = [layer for layer in body.training_module.modules() if isinstance(layer, nn.modules.batchnorm._NormBase)]
    across = any(
        layer.training and (layer.track_running_stats or isinstance(layer, nn.modules.batchnorm._BatchNorm))
        for layer in norms
    )
    if across or not _can_train_on_one_record(body):
        raise InputError(
            "expected for a private run a body that sees each record by itself (no batch normalisation), found: "
            f"{body.name}",
            hint="for example --body mlp:64,64 or cnn; or frozen:FILE, which keeps its normalisation fixed",
        )


def _can_train_on_one_record(body: Body) -> bool:
    """Whether the body can be trained on a batch of one record."""
    masks = {site.name: torch.ones(1, *site.shape) for site in body.dropout}
    try:
        body.compute_features(body.make_initial_params(Key(0)), torch.zeros(1, *body.input_shape), masks)
    except Exception:  # any error: a user's module would raise it in a run too
        return False
    return True


def compute_body_digest(body: Body, key: Key, record_shape: tuple[int, ...]) -> str:
    """Compute the SHA-256 digest of an untrained body: its architecture, its clip and all its parameters.

    For an encoder, the content of its file enters the digest, and not the path of the file.
    """
    found = sha256((fingerprint_encoder(body.name, record_shape) or name_architecture(body.name)).encode())
    for name, value in sorted(body.make_initial_params(key).items()):
        found.update(f"\n{name} {value.dtype} {tuple(value.shape)}\n".encode())
        found.update(value.contiguous().numpy().tobytes())
    return found.hexdigest()


def check_site(folder: SiteFolder, config: SiteConfig) -> str:
    """Check the site's data and body before the site starts; return a line that describes them, with any warning.

    A site that requires record privacy may lack training, validation or test rows; any other site must have all three.
    """
    limit = read_privacy_requirement(config)
    alone = limit is not None and limit.unit is Unit.RECORD
    site = load_data(folder, config, RowPreparation.ALONE if alone else RowPreparation.TOGETHER)
    body = load_body(config, load_schema(folder.schema_file).shape)
    shard = site.shard
    present = len(set(site.federation.train.labels.tolist()))
    line = (
        f"site {config.name}: {len(shard.train)} training, {len(shard.validation)} validation and {len(shard.test)} "
        f"test records from {Path(config.data or '').name}; {present} of {site.federation.n_class} classes; "
        f"body {body.name} with {body.width} features"
    )
    return line if site.warning is None else f"{line}\nwarning: {site.warning}"
