"""A site's data and body as its folder names them: the same in the check at the start and in every round."""

from __future__ import annotations

from pathlib import Path

from fedlog.core.keys import Key
from fedlog.data.schema import load_schema
from fedlog.data.site import Scaling, Site, load_site
from fedlog.data.split import Shares
from fedlog.errors import InputError
from fedlog.flower.folders import SiteConfig, SiteFolder
from fedlog.models.body import Body
from fedlog.models.catalog import body as body_named

DEFAULT_BODY = "mlp:64,64"
# The split is the site's own and has nothing to do with a run's seed: the same rows stay held out in every run.
SPLIT_SEED = 0


def load_data(folder: SiteFolder, config: SiteConfig, scaling: Scaling = Scaling.OWN) -> Site:
    """The site's data, split and scaled."""
    if config.data is None:
        raise InputError(f"expected data for site {config.name}, found none in {folder.config_file}")
    schema = load_schema(folder.schema_file)
    key = Key(SPLIT_SEED).child("site", config.name)
    return load_site(config.data, schema, config.name, key, read_shares(config.hold_out), scaling)


def read_shares(text: str | None) -> Shares:
    """The shares of the rows in `VALIDATION,TEST`; the usual ones for None."""
    if text is None:
        return Shares()
    try:
        validation, test = map(float, text.split(","))
    except ValueError:
        raise InputError(f"expected the shares VALIDATION,TEST, as in 0.2,0.2, found: {text!r}") from None
    return Shares(validation, test)


def load_body(config: SiteConfig, input_shape: tuple[int, ...], clip: str | None = None) -> Body:
    """The site's body for inputs of this shape, its features behind the clip of a run that has one."""
    name = config.body or DEFAULT_BODY
    if clip is not None and "@" in name:
        raise InputError(f"expected a body without a clip of its own in a run with clip {clip}, found: {name}")
    return body_named(name if clip is None else f"{name}@{clip}", input_shape)


def check_site(folder: SiteFolder, config: SiteConfig) -> str:
    """One line on what the site brings; an InputError before anything is started when its data or body do not fit."""
    site = load_data(folder, config)
    body = load_body(config, site.federation.input_shape)
    shard = site.shard
    present = len(set(site.federation.train.labels.tolist()))
    return (
        f"site {config.name}: {len(shard.train)} training, {len(shard.validation)} validation and {len(shard.test)} "
        f"test records from {Path(config.data or '').name}; {present} of {site.federation.n_class} classes; "
        f"body {body.name} with {body.width} features"
    )
