"""Load several sites as one federation for the simulator, with the same rows as in a deployment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import polars as pl
import torch
from torch import Tensor

from fedlog.data.federation import Federation, InputEncoding, Records, Shard, check_federation
from fedlog.data.schema import Schema, check_schema, load_schema
from fedlog.data.schema_draft import (
    SCHEMA_FROM_ROWS,
    DraftOptions,
    draft_array_schema,
    draft_image_schema,
    draft_table_schema,
    find_label_column,
    sort_naturally,
)
from fedlog.data.site import RowPreparation, Site, load_site, make_site, make_split_key
from fedlog.data.split import HeldOutShares
from fedlog.data.tables import TABLE_SUFFIXES, check_table, read_frame
from fedlog.data.transforms import IDENTITY
from fedlog.errors import InputError, prefix_errors
from fedlog.files.names import did_you_mean, find_closest_name, hint_at_missing_path

SCHEMA_FILE = "schema.toml"
SITE_FILES = "one .csv, .tsv, .parquet or .npz file, or folder of images by class, for each site"


@dataclass(frozen=True)
class SiteSources:
    """Where each site's records are, and the schema file beside them, if there is one.

    Either `paths` has the file or folder of each site, or `frames` the rows of each site, if all are in one table.
    """

    name: str
    paths: dict[str, Path]
    schema: Path | None = None
    frames: dict[str, pl.DataFrame] = field(default_factory=dict)

    @classmethod
    def find(cls, source: str | Path | Sequence[str | Path], site_column: str | None = None) -> SiteSources:
        """The sites in a folder, in a list of files and folders, or in one table with a column of site names.

        A text with commas is a list, unless there is a file or folder of that name.
        """
        if isinstance(source, str) and "," in source and not Path(source).exists():
            source = source.split(",")
        if not isinstance(source, str | Path):
            _refuse_site_column(site_column, "a list of files")
            return cls("files", _find_site_paths([Path(path) for path in source], "the list of sites"))
        folder = Path(source)
        if folder.is_file() and folder.suffix in TABLE_SUFFIXES:
            return cls(folder.stem, {}, None, _split_table_by_site(folder, site_column))
        _refuse_site_column(site_column, str(folder))
        if not folder.is_dir():
            raise InputError(
                f"expected a folder with {SITE_FILES}, found: {folder}", hint=_hint_at_unusable_path(folder)
            )
        found = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
        paths = _find_site_paths([path for path in found if path.name != SCHEMA_FILE], str(folder))
        schema = folder / SCHEMA_FILE
        return cls(folder.name, paths, schema if schema.exists() else None)


def _hint_at_unusable_path(path: Path) -> str:
    """A hint for a path that does not exist, or is neither a folder nor a table."""
    if path.exists():
        return "give a folder, or one table with --site-column COLUMN"
    return hint_at_missing_path(path)


def _refuse_site_column(column: str | None, where: str) -> None:
    if column is not None:
        raise InputError(
            f"--site-column needs one table with all sites, found: {where}",
            hint="leave out --site-column, or name a single table",
        )


def _split_table_by_site(path: Path, column: str | None) -> dict[str, pl.DataFrame]:
    """The rows of each site by the site's name, sorted, without the column that names the sites."""
    frame = read_frame(path)
    if column is None:
        raise InputError(
            f"it is not known which column of {path.name} names the sites; its columns: {', '.join(frame.columns)}",
            hint="name it with --site-column COLUMN, or give a folder with one file for each site",
        )
    if column not in frame.columns:
        raise InputError(
            f"expected a column {column} in {path}, found: {', '.join(frame.columns)}",
            hint=did_you_mean(column, frame.columns, "name one of these columns with --site-column"),
        )
    names = frame[column].cast(pl.String).str.strip_chars()
    if names.null_count():
        first = int(names.is_null().arg_max() or 0)
        raise InputError(
            f"expected the name of a site in column {column} of {path}, found none in row {first + 1}",
            hint="fill the column, or remove the row",
        )
    found = sort_naturally(names.unique().to_list())
    return {name: frame.filter(names == name).drop(column) for name in found}


def _find_site_paths(paths: Sequence[Path], where: str) -> dict[str, Path]:
    """The path of each site by the site's name, sorted; InputError for an unknown type of file or a repeated name."""
    sites: dict[str, Path] = {}
    for path in paths:
        if not path.exists():
            raise InputError(f"expected {SITE_FILES}, found no such file: {path}", hint=_hint_at_unusable_path(path))
        if not path.is_dir() and path.suffix not in (*TABLE_SUFFIXES, ".npz"):
            raise InputError(
                f"expected {SITE_FILES} in {where}, found: {path.name}", hint="move it elsewhere, or convert it"
            )
        name = path.name if path.is_dir() else path.stem
        if name in sites:
            raise InputError(
                f"expected one source for each site in {where}, found two for {name}: {sites[name]} and {path}",
                hint="give one of them another name",
            )
        sites[name] = path
    if not sites:
        raise InputError(f"expected {SITE_FILES} in {where}, found none", hint="put the sites' files there")
    return dict(sorted(sites.items()))


def load_sites(
    sources: SiteSources, label: str | None, schema: Path | Schema | None, split_seed: int, *, rows_alone: bool
) -> Federation:
    """The federation of these sites, each split, encoded and scaled as in a deployment."""
    given = schema or sources.schema
    notes: tuple[str, ...] = ()
    if given is None:
        agreed, notes = draft_sites_schema(sources, label)
        notes = (*notes, SCHEMA_FROM_ROWS) if rows_alone else notes
    else:
        agreed = given if isinstance(given, Schema) else load_schema(given)
        if label is not None and label != agreed.label_column:
            raise InputError(
                f"the label column in the schema is {agreed.label_column}, but --label is: {label}",
                hint="leave out --label, or change the schema",
            )
    preparation = RowPreparation.ALONE if rows_alone else RowPreparation.TOGETHER

    def split_again(seed: int) -> Federation:
        names = sources.frames or sources.paths
        sites = [_load_one_site(sources, name, agreed, seed, preparation) for name in names]
        joined = join_sites(sites, agreed, sources.name)
        # Values were changed only with rows_alone or a range in the schema.
        changed = rows_alone or agreed.input_range is not None
        warnings = tuple(f"site {site.shard.name}: {site.warning}" for site in sites if site.warning and changed)
        return replace(joined, notes=(*notes, *warnings), rows_alone=rows_alone, split_again=split_again)

    return split_again(split_seed)


def _load_one_site(
    sources: SiteSources, name: str, schema: Schema, split_seed: int, preparation: RowPreparation
) -> Site:
    key, shares = make_split_key(name), HeldOutShares(split_seed=split_seed)
    with prefix_errors(f"site {name}"):
        if name not in sources.frames:
            return load_site(str(sources.paths[name]), schema, name, key, shares, preparation)
        table = check_table(sources.frames[name], schema, f"site {name} of {sources.name}")
        return make_site(table, schema, name, key, shares, preparation)


def draft_sites_schema(sources: SiteSources, label: str | None) -> tuple[Schema, tuple[str, ...]]:
    """A schema for all sites, and notes: columns that were left out, and class names that look mistyped."""
    if sources.frames:
        return _draft_schema_of_tables(sources.frames, label)
    paths = list(sources.paths.values())
    kinds = {"folders" if path.is_dir() else "npz" if path.suffix == ".npz" else "tables" for path in paths}
    if len(kinds) > 1:
        raise InputError(
            f"expected files of one kind at all sites, found: {', '.join(path.name for path in paths)}",
            hint="use only tables, only .npz files, or only folders of images",
        )
    if kinds == {"tables"}:
        return _draft_schema_of_tables({path.name: read_frame(path) for path in paths}, label)
    if label is not None:
        raise InputError(f"--label is only for tables, found: {paths[0].name}", hint="leave out --label")
    drafts = [draft_image_schema(path) if path.is_dir() else draft_array_schema(path) for path in paths]
    values = sort_naturally({value for draft in drafts for value in draft.label_values})
    schema = check_schema(replace(drafts[0], label_values=tuple(values)), f"the drafted schema of {sources.name}")
    return schema, _find_mistyped_classes(dict(zip(sources.paths, drafts, strict=True)))


def _find_mistyped_classes(drafts: Mapping[str, Schema]) -> tuple[str, ...]:
    """A sentence for each class that only one site has, if that site lacks another site's class of a similar name."""
    notes = []
    for site, draft in drafts.items():
        others = {value for name, other in drafts.items() if name != site for value in other.label_values}
        for value in draft.label_values:
            near = None if value in others else find_closest_name(value, others - set(draft.label_values))
            if near is not None:
                notes.append(f"only site {site} has class {value}, and it lacks class {near}: is one of them mistyped?")
    return tuple(notes)


def _draft_schema_of_tables(tables: Mapping[str, pl.DataFrame], label: str | None) -> tuple[Schema, tuple[str, ...]]:
    (first, *_), frames = tables, list(tables.values())
    columns = frames[0].columns
    for name, frame in tables.items():
        if set(frame.columns) != set(columns):
            differ = ", ".join(sorted(set(frame.columns) ^ set(columns)))
            raise InputError(
                f"expected the same columns at every site; not in both {first} and {name}: {differ}",
                hint="name the columns to use in a schema: `fedlog federate schema FILE > schema.toml` drafts one",
            )
    given, label = label, label or find_label_column(frames[0])
    if label is None:
        raise InputError(
            f"it is not known which column of {first} holds the labels; its columns: {', '.join(columns)}",
            hint="name it with --label COLUMN",
        )
    texts = [frame.select(pl.col(name).cast(pl.String) for name in columns) for frame in frames]
    # Column types of Parquet files may differ between sites; then all columns are compared as texts.
    everything = pl.concat(frames if len({str(frame.schema) for frame in frames}) == 1 else texts)
    schema, notes = draft_table_schema(everything, f"the {len(frames)} sites", label, DraftOptions(), len(frames))
    guessed = () if given else (f"The label column was guessed: {label}.",)
    return check_schema(schema, "the schema drafted from all sites"), (*guessed, *notes)


def join_sites(sites: Sequence[Site], schema: Schema, name: str) -> Federation:
    """One federation with a client for each site; a site's records are scaled with the site's own statistics."""
    train, test, shards = [], [], []
    n_train = n_test = 0
    for site in sites:
        own, shard = site.federation, site.shard
        shards.append(Shard(shard.name, shard.train + n_train, shard.test + n_test, shard.validation + n_train))
        # Scaled here, because sites scale differently and a federation has only one transform.
        train.append(replace(own.train, inputs=own.transform.prepare(own.train.inputs)))
        test.append(replace(own.test, inputs=own.transform.prepare(own.test.inputs)))
        n_train, n_test = n_train + len(own.train), n_test + len(own.test)
    return check_federation(
        Federation(
            name=name,
            n_class=schema.n_class,
            input_shape=schema.shape,
            train=Records.join(train),
            test=Records.join(test),
            shards=tuple(shards),
            transform=IDENTITY,
            class_names=schema.label_values,
            schema=schema,
            encodings=tuple(InputEncoding(site.federation.transform, site.encoder) for site in sites),
            raw_images=_collect_raw_images(sites),
        )
    )


def _collect_raw_images(sites: Sequence[Site]) -> tuple[Tensor, Tensor] | None:
    """The training images and the test images of all sites before scaling; None if a site's inputs have no scaling.

    Pretrained bodies need unscaled images, because each of these bodies has a scaling of its own.
    """
    pools = [(site.federation.train.inputs, site.federation.test.inputs) for site in sites]
    if any(not site.federation.transform.mean for site in sites):
        return None
    return torch.cat([train for train, _ in pools]), torch.cat([test for _, test in pools])
