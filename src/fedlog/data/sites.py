"""Several sites in one federation: the simulator's counterpart of a deployment, on the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl
import torch
from torch import Tensor

from fedlog.data.draft import DraftOptions, draft_images, draft_npz, draft_table_schema, named_label, sort_naturally
from fedlog.data.federation import Encoding, Federation, Records, Shard, check_federation
from fedlog.data.schema import Schema, check_schema, load_schema
from fedlog.data.site import Preparation, Site, load_site, split_key
from fedlog.data.tables import TABLE_SUFFIXES, read_frame
from fedlog.data.transforms import IDENTITY
from fedlog.errors import InputError

SCHEMA_FILE = "schema.toml"
FORMS = "one .csv, .tsv, .parquet or .npz file, or folder of images by class, for each site"


@dataclass(frozen=True)
class SiteSources:
    """Where the records of each site lie, by the site's name, and the schema file beside them, if there is one."""

    name: str
    paths: dict[str, Path]
    schema: Path | None = None

    @classmethod
    def at(cls, source: str | Path | Sequence[str | Path]) -> SiteSources:
        """The sites in a folder, or those in a list of files and folders of images."""
        if not isinstance(source, str | Path):
            return cls("files", _by_site([Path(path) for path in source], "the list of sites"))
        folder = Path(source)
        if not folder.is_dir():
            raise InputError(f"expected a folder with {FORMS}, found: {folder}")
        found = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
        paths = _by_site([path for path in found if path.name != SCHEMA_FILE], str(folder))
        schema = folder / SCHEMA_FILE
        return cls(folder.name, paths, schema if schema.exists() else None)


def _by_site(paths: Sequence[Path], where: str) -> dict[str, Path]:
    """The paths by the names of their sites, sorted; what can be no site's records is refused, never passed over."""
    sites: dict[str, Path] = {}
    for path in paths:
        if not path.exists():
            raise InputError(f"expected {FORMS}, found no such file: {path}")
        if not path.is_dir() and path.suffix not in (*TABLE_SUFFIXES, ".npz"):
            raise InputError(
                f"expected {FORMS} in {where}, found: {path.name}", hint="move it elsewhere, or convert it"
            )
        name = path.name if path.is_dir() else path.stem
        if name in sites:
            raise InputError(f"expected one source for each site in {where}, found two for {name}: {path.name}")
        sites[name] = path
    if not sites:
        raise InputError(f"expected {FORMS} in {where}, found none")
    return dict(sorted(sites.items()))


def load_sites(
    sources: SiteSources,
    label: str | None = None,
    schema: Path | Schema | None = None,
    split_seed: int = 0,
    preparation: Preparation = Preparation.TOGETHER,
) -> Federation:
    """The federation of these sites, each split, encoded and scaled as it would be in a deployment."""
    given = schema or sources.schema
    notes: tuple[str, ...] = ()
    if given is None:
        agreed, notes = draft_sites_schema(sources, label)
    else:
        agreed = given if isinstance(given, Schema) else load_schema(given)
        if label is not None and label != agreed.label_column:
            raise InputError(f"the schema's label column is {agreed.label_column}; another one was given: {label}")
    sites = [
        load_site(str(path), agreed, name, split_key(name, split_seed), preparation=preparation)
        for name, path in sources.paths.items()
    ]
    alone = preparation is Preparation.ALONE
    return replace(join_sites(sites, agreed, sources.name), notes=notes, rows_alone=alone)


def draft_sites_schema(sources: SiteSources, label: str | None) -> tuple[Schema, tuple[str, ...]]:
    """A schema that covers all sites, and a sentence for each column that was left out of it."""
    paths = list(sources.paths.values())
    kinds = {"folders" if path.is_dir() else "npz" if path.suffix == ".npz" else "tables" for path in paths}
    if len(kinds) > 1:
        raise InputError(f"expected sites with records of one kind, found: {', '.join(path.name for path in paths)}")
    if kinds == {"tables"}:
        return _draft_tables(paths, label)
    if label is not None:
        raise InputError(f"a label column is for tables, found: {paths[0].name}")
    drafts = [draft_images(path) if path.is_dir() else draft_npz(path) for path in paths]
    values = sort_naturally({value for draft in drafts for value in draft.label_values})
    return check_schema(replace(drafts[0], label_values=tuple(values)), f"the drafted schema of {sources.name}"), ()


def _draft_tables(paths: Sequence[Path], label: str | None) -> tuple[Schema, tuple[str, ...]]:
    frames = [read_frame(path) for path in paths]
    columns = frames[0].columns
    for path, frame in zip(paths, frames, strict=True):
        if set(frame.columns) != set(columns):
            differ = ", ".join(sorted(set(frame.columns) ^ set(columns)))
            raise InputError(
                f"expected the same columns at every site; not in both {paths[0].name} and {path.name}: {differ}",
                hint="name the columns to use in a schema: `fedlog federate schema FILE > schema.toml` drafts one",
            )
    label = label or named_label(frames[0])
    if label is None:
        raise InputError(
            f"which column of {paths[0].name} holds the labels? It has: {', '.join(columns)}",
            hint="name it: --label COLUMN, or label= in Python",
        )
    texts = [frame.select(pl.col(name).cast(pl.String) for name in columns) for frame in frames]
    # Parquet files keep the types of their columns, which may differ between sites; texts never do.
    everything = pl.concat(frames if len({str(frame.schema) for frame in frames}) == 1 else texts)
    schema, notes = draft_table_schema(everything, f"the {len(paths)} sites", DraftOptions(label))
    return check_schema(schema, "the schema drafted from all sites"), notes


def join_sites(sites: Sequence[Site], schema: Schema, name: str) -> Federation:
    """One federation with a client for each site, every site's records as its own body would see them."""
    train, test, shards = [], [], []
    n_train = n_test = 0
    for site in sites:
        own, shard = site.federation, site.shard
        shards.append(Shard(shard.name, shard.train + n_train, shard.test + n_test, shard.validation + n_train))
        train.append(_prepare(site, own.train))
        test.append(_prepare(site, own.test))
        n_train, n_test = n_train + len(own.train), n_test + len(own.test)
    return check_federation(
        Federation(
            name=name,
            n_class=schema.n_class,
            input_shape=schema.shape,
            train=_concatenate(train),
            test=_concatenate(test),
            shards=tuple(shards),
            transform=IDENTITY,
            class_names=schema.label_values,
            schema=schema,
            encodings=tuple(Encoding(site.federation.transform, site.encoder) for site in sites),
            raw_images=_raw_images(sites),
        )
    )


def _raw_images(sites: Sequence[Site]) -> tuple[Tensor, Tensor] | None:
    """The pixels as they were, for encoders that scale them in their own way; None for other records."""
    pools = [(site.federation.train.inputs, site.federation.test.inputs) for site in sites]
    if any(train.dtype != torch.uint8 for train, _ in pools):
        return None
    return torch.cat([train for train, _ in pools]), torch.cat([test for _, test in pools])


def _prepare(site: Site, records: Records) -> Records:
    # Each site scales its images by its own figures, and a federation has one transform for all.
    return replace(records, inputs=site.federation.transform.prepare(records.inputs))


def _concatenate(parts: Sequence[Records]) -> Records:
    return Records(torch.cat([part.inputs for part in parts]), torch.cat([part.labels for part in parts]))
