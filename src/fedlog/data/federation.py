"""The data of a federation: a training and a test pool of records, and the positions of each client's records."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedlog.data.schema import Schema
from fedlog.data.transforms import Transform
from fedlog.errors import InputError, add_default_hint, prefix_errors
from fedlog.files.argument_types import check_argument_types
from fedlog.files.flag_rewriting import rewrite_flags_in_errors

if TYPE_CHECKING:
    from fedlog.data.tables import TableEncoder  # not at run time, because polars is slow to import


@dataclass(frozen=True, eq=False)
class Records:
    """Records in memory: their inputs and labels, and, if known, their users (people), targets and rows in a file."""

    inputs: Tensor  # (n, *input_shape): uint8 for images, float32 otherwise
    labels: Tensor  # (n,) int64
    users: Tensor | None = None  # (n,) int64: the number of the person that each record is from, if known
    targets: Tensor | None = None  # (n,) float32: the number to predict, scaled so that the schema's range is -1..1
    rows: Tensor | None = None
    """(n,) int64: the row of each record in its site's file, if known. Below 0 for a row that all sites share."""

    def __len__(self) -> int:
        return int(self.labels.shape[0])

    @property
    def required_users(self) -> Tensor:
        """The user (a person) that each record is from; InputError if this is not known."""
        if self.users is None:
            raise InputError(
                "expected records whose users (people) are known, found: records without users",
                hint="give `Records` its `users`, or use a partition that needs no users",
            )
        return self.users

    @property
    def required_targets(self) -> Tensor:
        """The targets, which are numbers to predict; InputError if the records have classes instead."""
        if self.targets is None:
            raise InputError(
                "expected records with targets (numbers to predict), found: records with classes",
                hint="use a method that predicts classes, or data with a number to predict",
            )
        return self.targets

    def at(self, positions: Tensor) -> Records:
        """The records at these positions, in this order."""
        users, targets, rows = (
            None if part is None else part[positions] for part in (self.users, self.targets, self.rows)
        )
        return Records(self.inputs[positions], self.labels[positions], users, targets, rows)

    @staticmethod
    def join(parts: Sequence[Records]) -> Records:
        """The records of all parts in one pool; users, targets and rows are kept only if every part has them."""

        def join_if_known(name: str) -> Tensor | None:
            known = [getattr(part, name) for part in parts]
            return None if any(each is None for each in known) else torch.cat(known)

        inputs, labels = torch.cat([part.inputs for part in parts]), torch.cat([part.labels for part in parts])
        return Records(inputs, labels, join_if_known("users"), join_if_known("targets"), join_if_known("rows"))


@dataclass(frozen=True, eq=False)
class Shard:
    """One client of a federation: its name, and the positions of its records in the federation's two pools."""

    name: str
    train: Tensor  # (n_i,) int64 positions in Federation.train
    test: Tensor  # int64 positions in Federation.test
    validation: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    """int64 positions in Federation.train, disjoint from `train`."""


@dataclass(frozen=True, eq=False)
class InputEncoding:
    """How one client turns raw records, its own and new ones, into inputs of its model."""

    transform: Transform
    encoder: TableEncoder | None = None  # only for a table


@dataclass(frozen=True, eq=False)
class Federation:
    """The data of a federation, which `fedlog.run` trains on.

    Make one with `Federation.from_arrays`, `Federation.from_csv` or `Federation.named`. A function of your own may
    also build one from its fields: two pools of records (`train`, `test`), and each client's positions in them
    (`shards`). The fields with a default are optional.
    """

    name: str
    n_class: int
    input_shape: tuple[int, ...]  # as the body sees it, e.g. (1, 28, 28)
    train: Records
    test: Records
    shards: tuple[Shard, ...]
    transform: Transform
    class_names: tuple[str, ...]
    schema: Schema | None = None  # of the user's own tables, images or arrays
    encodings: tuple[InputEncoding, ...] = ()  # one for each client, if they differ; the records are already encoded
    labels: tuple[int, ...] = ()  # the number that stands for each class in the data, if labels are numbers
    raw_images: tuple[Tensor, Tensor] | None = None  # training and test pixels before each client's scaling
    rows_alone: bool = False  # whether rows were split and scaled independently of each other
    notes: tuple[str, ...] = ()  # for the user, e.g. columns that were left out
    # Makes the federation with the same test rows and other validation rows; None if the user gave the split.
    split_again: Callable[[int], Federation] | None = None

    @classmethod
    @check_argument_types
    def from_arrays(
        cls,
        train: Mapping[str, Sequence[Any]],
        test: Mapping[str, Sequence[Any]] | Sequence[Any] | float | None = None,
        *,
        class_names: Sequence[str] | None = None,
        validation: float | None = None,
        split_seed: int = 0,
        rows_alone: bool = False,
        number: tuple[float, float] | None = None,
        name: str = "arrays",
    ) -> Federation:
        """A federation from arrays, tensors or data frames, encoded as in a deployment.

        Columns of numbers are scaled with the mean and spread of the site's training rows; a missing value (NaN) is
        replaced by the median and marked by an indicator. Texts in a data frame become categories. Images (uint8) are
        scaled by channel. Other arrays are not changed.

        Args:
            train: for each site `(X, y)` or `(X, y, groups)`. `X` has one record a row. `y` has labels: whole numbers
                or texts. Records of one group (a person, a device) stay together when rows are held out.
            test: for each site `(X, y)`; or one such pair for all sites; or the share of each site's rows to hold out.
                Default: a fifth of the rows.
            class_names: the names of the classes. Labels that are whole numbers are then positions in this list.
            validation: the share of each site's rows to hold out for validation. Default: a fifth, or none if test
                records are given.
            split_seed: chooses the validation rows; a deployment uses 0.
            rows_alone: whether each row is treated without a look at other rows, as runs with `privacy="record"` need.
                Columns of numbers are then not scaled, and a hash of a row decides if it is held out.
            number: if `y` is a number to predict (`method="fed-regression"`), the range in which it lies.
            name: the name of the data in results and reports.

        Returns:
            The federation, one client a site, in the order of the sites' names.

        """
        from fedlog.data.arrays_in_memory import make_federation_from_arrays

        with rewrite_flags_in_errors():
            return make_federation_from_arrays(
                train,
                test,
                class_names=class_names,
                validation=validation,
                split_seed=split_seed,
                rows_alone=rows_alone,
                number=number,
                name=name,
            )

    @classmethod
    @check_argument_types
    def from_csv(
        cls,
        source: str | Path | Sequence[str | Path],
        label: str | None = None,
        schema: str | Path | Schema | None = None,
        *,
        site_column: str | None = None,
        split_seed: int = 0,
        rows_alone: bool = False,
    ) -> Federation:
        """A federation from files, one for each site, read, split and encoded as in a deployment.

        Args:
            source: a folder with one table (.csv, .tsv, .parquet), .npz file or folder of images by class for each
                site, or a list of such files; a site has the name of its file. A `schema.toml` in the folder is used.
                Or a single table with all sites, which `site_column` tells apart.
            label: the column of the labels, if there is no schema.
            schema: a schema file (`docs/deploy.md`) or a `Schema`. Without one it is drafted from all files, and the
                federation's `notes` say which columns were left out.
            site_column: the column of a single table that names each row's site; it is not used as a feature.
            split_seed: chooses the validation rows; a deployment uses 0.
            rows_alone: as for `from_arrays`.

        Returns:
            The federation, one client a site, in the order of the sites' names.

        """
        from fedlog.data.sites import SiteSources, load_sites

        read = schema if isinstance(schema, Schema) or schema is None else Path(schema)
        with rewrite_flags_in_errors():
            sources = SiteSources.find(source, site_column)
            return load_sites(sources, label, read, split_seed, rows_alone=rows_alone)

    @classmethod
    def named(cls, name: str, **division: Any) -> Federation:
        """A named data set, divided among clients.

        Args:
            name: `digits`, `mnist`, ... (docs/data.md lists them), `sites:FOLDER` or `package.module:function`.
            division: `clients`, `classes_per_client`, `partition`, `dirichlet_alpha`, `train_records`,
                `test_records`, `validation_fraction`, `data_dir`, `seed`, `label`, `schema`; each has a default.

        Returns:
            The federation.

        """
        from fedlog.data.catalog import load_federation
        from fedlog.data.data_spec import DataSpec

        known = [key for key in DataSpec.__dataclass_fields__ if key != "name"]
        unknown = [key for key in division if key not in known]
        if unknown:
            raise InputError(
                f"data set {name}: unknown settings: {', '.join(unknown)}", hint=f"the settings are {', '.join(known)}"
            )
        paths = {key: Path(value) for key, value in division.items() if key in ("data_dir", "schema") and value}
        with rewrite_flags_in_errors():
            return load_federation(DataSpec(name, **{**division, **paths}))

    @property
    def target_range(self) -> tuple[float, float] | None:
        """The agreed range of the number to predict; None if classes are predicted."""
        return None if self.schema is None else self.schema.target_range

    @property
    def clients(self) -> tuple[str, ...]:
        """The clients' names, in the order of `shards`."""
        return tuple(shard.name for shard in self.shards)

    def __repr__(self) -> str:
        target = f"{self.n_class} classes"
        if self.target_range is not None:
            target = f"a number from {self.target_range[0]:g} to {self.target_range[1]:g}"
        lines = [f"Federation {self.name}: {len(self.shards)} clients, {target}, records of shape {self.input_shape}"]
        for shard in self.shards[:10]:
            held = f"{len(shard.validation)} validation, {len(shard.test)} test"
            lines.append(f"  {shard.name}: {len(shard.train)} training, {held} records")
        lines += [f"  and {len(self.shards) - 10} more clients"] if len(self.shards) > 10 else []
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])

    def encoding_of(self, client: int) -> InputEncoding:
        """How a client's raw records become inputs.

        Args:
            client: the position of the client.

        Returns:
            The client's own encoding, or the one that all clients share.

        """
        return self.encodings[client] if self.encodings else InputEncoding(self.transform)

    def make_schema(self) -> Schema:
        """The schema of the records; if there is none, one with the classes and the shape of the inputs."""
        return self.schema or Schema("label", self.class_names, input_shape=self.input_shape)

    def with_numbered_rows(self) -> Federation:
        """This federation with a number for each record, by which a comparison of runs tells the records apart.

        If both pools have row numbers, these stay. Otherwise a record's number is its position in its pool; test
        records that all clients share are numbered -1, -2, ...
        """
        if self.train.rows is not None and self.test.rows is not None:
            return self
        shared = all(torch.equal(shard.test, self.shards[0].test) for shard in self.shards)
        test_rows = torch.arange(len(self.test))
        return replace(
            self,
            train=replace(self.train, rows=torch.arange(len(self.train))),
            test=replace(self.test, rows=-1 - test_rows if shared else test_rows),
        )

    def content_digest(self) -> str:
        """A SHA-256 of all records, the classes and the scaling, and of which client has which records."""
        transform = [self.transform.mean, self.transform.std, self.transform.crop_padding, self.transform.flip]
        found = hashlib.sha256(json.dumps([self.n_class, self.input_shape, self.class_names, transform]).encode())
        # Shifted data are equal after scaling, but new records are scaled differently: so the scaling counts too.
        for encoding in self.encodings:
            scale = [encoding.transform.mean, encoding.transform.std, encoding.encoder and encoding.encoder.to_json()]
            found.update(json.dumps(scale).encode())
        for pool in (self.train, self.test):
            for values in (pool.inputs, pool.labels, *(() if pool.targets is None else (pool.targets,))):
                found.update(f"\n{values.dtype} {tuple(values.shape)}\n".encode())
                found.update(values.contiguous().numpy().reshape(-1).view("uint8").data)
        for shard in self.shards:
            found.update(f"\n{shard.name}\n".encode())
            for positions in (shard.train, shard.test, shard.validation):
                found.update(str(positions.tolist()).encode())
        return found.hexdigest()


@add_default_hint("docs/data.md, under 'A function of your own', shows what a federation needs")
def check_federation(federation: Federation) -> Federation:
    """Return the federation unchanged; InputError if it cannot be trained and evaluated.

    Every client needs a training record, and a test record too, since accuracy is a mean over clients.
    """
    where = f"data set {federation.name}"
    named = len(federation.class_names)
    with prefix_errors(where):
        if named != federation.n_class:
            raise InputError(f"expected a name for each of {federation.n_class} classes, found: {named}")
        if not federation.shards:
            raise InputError("a federation needs at least one client, found: none")
    for part, records in (("training", federation.train), ("test", federation.test)):
        with prefix_errors(f"{where}, {part} records"):
            _check_records(records, federation)
    with prefix_errors(where):
        _check_transform(federation.transform, federation.input_shape)
        _check_client_names([shard.name for shard in federation.shards])
    for shard in federation.shards:
        with prefix_errors(f"{where}, client {shard.name}"):
            _check_shard(shard, federation)
    return federation


def _check_records(records: Records, federation: Federation) -> None:
    if records.labels.dtype != torch.int64 or records.labels.ndim != 1:
        raise InputError(f"labels must be int64 of shape (n,), found: {_describe_tensor(records.labels)}")
    expected = (len(records), *federation.input_shape)
    if tuple(records.inputs.shape) != expected:
        raise InputError(f"inputs must have shape {expected}, found: {_describe_tensor(records.inputs)}")
    if records.inputs.dtype not in (torch.uint8, torch.float32):
        raise InputError(f"inputs must be uint8 or float32, found: {_describe_tensor(records.inputs)}")
    if (records.targets is None) is not (federation.target_range is None):
        found = "only the range" if records.targets is None else "only targets"
        raise InputError(f"targets and a schema with their range must be given together, found: {found}")
    for name, values in (("users", records.users), ("targets", records.targets)):
        if values is not None and values.shape != records.labels.shape:
            raise InputError(f"{name} must have shape ({len(records)},), found: {_describe_tensor(values)}")
    outside = (records.labels < 0) | (records.labels >= federation.n_class)
    if bool(outside.any()):
        first = int(outside.nonzero()[0])
        label = int(records.labels[first])
        raise InputError(f"labels must be 0 to {federation.n_class - 1}; record {first} has label: {label}")
    if records.inputs.dtype == torch.float32 and not bool(torch.isfinite(records.inputs).all()):
        finite = torch.isfinite(records.inputs.reshape(len(records), -1)).all(dim=1)
        raise InputError(f"inputs must be finite; NaN or infinity in record: {int((~finite).nonzero()[0])}")


def _check_transform(transform: Transform, input_shape: tuple[int, ...]) -> None:
    mean, std, channels = transform.mean, transform.std, input_shape[0] if input_shape else 1
    if not (isinstance(mean, tuple) and isinstance(std, tuple)):
        raise InputError(f"the transform's mean and std must be tuples of numbers, found: {mean} and {std}")
    if len(mean) != len(std) or len(mean) not in (0, 1, channels):
        found = f"{len(mean)} and {len(std)}"
        raise InputError(f"the transform needs a mean and a std for each of {channels} channels, found: {found}")
    if not all(math.isfinite(m) and math.isfinite(s) and s > 0 for m, s in zip(mean, std, strict=True)):
        raise InputError(f"the transform's means must be finite and its stds positive, found: {mean} and {std}")
    if transform.crop_padding < 0 or (transform.augments and len(input_shape) != 3):
        raise InputError(
            "crops and flips need images (channels, height, width) and a padding of 0 or more, "
            f"found: records of shape {input_shape}, padding {transform.crop_padding}"
        )


def _check_client_names(names: Sequence[object]) -> None:
    for at, name in enumerate(names):
        if not isinstance(name, str) or not name:
            raise InputError(f"client {at} needs a name, a text that is not empty, found: {name!r}")
    repeated = sorted({str(name) for name in names if names.count(name) > 1})
    if repeated:
        raise InputError(f"client names must differ; repeated: {', '.join(repeated)}")


def _check_shard(shard: Shard, federation: Federation) -> None:
    pools = {"train": federation.train, "test": federation.test, "validation": federation.train}
    for part, pool in pools.items():
        positions: Tensor = getattr(shard, part)
        if positions.dtype != torch.int64 or positions.ndim != 1:
            raise InputError(f"{part} positions must be int64 of shape (n,), found: {_describe_tensor(positions)}")
        if len(positions) == 0 and part != "validation":
            needed = "training" if part == "train" else part
            raise InputError(
                f"a client needs at least one {needed} record, found: none",
                hint="use fewer clients or another partition",
            )
        if len(positions) and not (int(positions.min()) >= 0 and int(positions.max()) < len(pool)):
            found = f"{int(positions.min())} to {int(positions.max())}"
            raise InputError(f"{part} positions must be 0 to {len(pool) - 1}, found: {found}")
    if bool(torch.isin(shard.validation, shard.train).any()):
        both = int(shard.validation[torch.isin(shard.validation, shard.train)][0])
        raise InputError(f"a record must not be for both training and validation, found: position {both}")


def _describe_tensor(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
