"""Settings of a run's data and models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedlog.data.data_spec import Partition
from fedlog.settings.fields import AtLeastOne, InDigest, Section, local_setting, setting
from fedlog.settings.training import Recipe


@dataclass(frozen=True)
class DataSettings(Section):
    """Which data a run uses, and how they are divided among clients; None means the default of the data set."""

    data: str = setting(
        "digits",
        "digits, wine, breast-cancer, circle, mnist, cifar10, cifar100, har, leaf; with a number to predict: diabetes, "
        "wine-alcohol; "
        "sites:FOLDER with one file a site, sites:A.csv,B.csv, sites:TABLE.csv with --site-column; or "
        "package.module:function",
    )
    label: str | None = local_setting(
        None, "with sites:FOLDER: the column of the labels (default: the schema's)", metavar="COLUMN"
    )
    schema: str | None = local_setting(
        None,
        "with sites:FOLDER: the schema of all sites (default: schema.toml in the folder, or drafted from all files)",
        metavar="FILE",
    )
    site_column: str | None = local_setting(
        None, "with sites:TABLE.csv: the column that names each row's site", metavar="COLUMN"
    )
    split_seed: int = setting(
        0,
        "seed that chooses the validation rows of sites:...; a deployment uses 0",
        in_digest=InDigest.UNLESS_DEFAULT,
        metavar="N",
    )
    data_dir: str | None = local_setting(
        None, "folder of the data sets (default: $FEDLOG_DATA, or the cache)", metavar="DIR"
    )
    data_sha256: str | None = setting(None, "digest of the user's own data; filled in by the run", flag=False)
    clients: int | None = setting(None, "how many clients (default: the data set's)", metavar="N")
    partition: Partition | None = setting(None, "how records are divided among clients (default: the data set's)")
    classes_per_client: int | None = setting(
        None, "how many classes a client has in the shards partition (default: the data set's)", metavar="K"
    )
    dirichlet_alpha: float | None = setting(
        None,
        "concentration of the dirichlet partition; the smaller, the more clients differ (default: 0.5)",
        metavar="A",
    )
    train_records: int | None = setting(None, "use only the first N training records (default: all)", metavar="N")
    test_records: AtLeastOne | None = setting(
        None,
        "use only the first N test records, for example if evaluating takes longer than training (default: all)",
        in_digest=InDigest.UNLESS_DEFAULT,
        metavar="N",
    )
    validation_fraction: float = setting(
        0.0, "share of each client's training records that is held out for validation", metavar="F"
    )


@dataclass(frozen=True)
class ModelSettings(Section):
    """The method of a run, its options, and the clients' bodies (networks below the head).

    `project`, `expand` and `buckets` are the sizes of feature maps, between a frozen encoder and the head.
    """

    method: str = setting(
        "fedlog", "fedlog, fedlog-c, local, pooled, fedavg, ... or package.module:name", deployed=True
    )
    options: Mapping[str, Any] = setting({}, "options of the method", flag=False, deployed=True)
    body: tuple[str, ...] = setting(
        (),
        "cnn, mlp:64,64, ...; several are spread evenly over the clients, CLIENT=NAME is for one client",
        metavar="NAME",
    )
    recipe: Recipe | None = setting(
        None,
        "defaults of settings that are not given: the paper's, or those tuned on MNIST, CIFAR-10 and UCI HAR "
        "(default: paper on the paper's data sets, else tuned; docs/running.md)",
        in_digest=InDigest.NEVER,  # the settings that it stands for are in the digest
        deployed=True,
    )
    # These three are appended to the body's name when a run is resolved.
    project: AtLeastOne | None = setting(None, "project the features of a frozen encoder at random to N", metavar="N")
    expand: AtLeastOne | None = setting(None, "expand the features of a frozen encoder to N random ReLUs", metavar="N")
    buckets: AtLeastOne | None = setting(
        None, "put each feature of a frozen encoder into one of N buckets", metavar="N"
    )
    # A run's digest depends on the content of this file, not on its path.
    body_file: str | None = local_setting(
        None, "safetensors file with the parameters that every body starts from", metavar="FILE"
    )
    body_file_sha256: str | None = setting(None, "digest of all parameter files; filled in by the run", flag=False)
