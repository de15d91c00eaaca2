"""The public data sets: their files, addresses, checksums, terms of use, citations; and the state of files on disk.

A checksum of None means that none is published; such files are only checked when they are read.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from fedlog.data.readers import HAR_SIGNALS
from fedlog.errors import InputError
from fedlog.files.cache import find_cache_folder
from fedlog.files.names import did_you_mean

DATA_VARIABLE = "FEDLOG_DATA"


@dataclass(frozen=True)
class DataFile:
    """One file of a data set, with its path in the data folder."""

    path: str
    sha256: str | None


@dataclass(frozen=True)
class Download:
    """One address, and the files that come from it: the file itself, or members of a tar.gz or zip archive.

    A member has the same path in the archive and in the data folder. If `inner_zip` is set, the archive holds a zip
    file of that name, and the members are in this inner file.
    """

    url: str
    name: str  # the file name it is saved under
    sha256: str | None
    files: tuple[DataFile, ...]
    archive: str = "none"  # none, tar.gz or zip
    inner_zip: str | None = None


@dataclass(frozen=True)
class PublicDataSet:
    """A public data set: its downloads, terms of use and citation."""

    name: str
    title: str
    homepage: str
    terms: str
    citation: str
    downloads: tuple[Download, ...]

    @property
    def files(self) -> tuple[DataFile, ...]:
        """All files of the data set."""
        return tuple(file for download in self.downloads for file in download.files)


class FileState(Enum):
    """The state of a downloaded file on disk."""

    VERIFIED = "verified"
    PRESENT = "present, no checksum published"
    MISSING = "missing"
    CORRUPT = "corrupt"

    @property
    def usable(self) -> bool:
        """Whether the file can be read: it is there, and its checksum is right if one is known."""
        return self in (FileState.VERIFIED, FileState.PRESENT)


def find_data_folder(given: Path | None = None) -> Path:
    """The folder of the data sets: the one given, else $FEDLOG_DATA, else the platform's user cache."""
    return find_cache_folder(DATA_VARIABLE) if given is None else given.expanduser()


def hash_file(path: Path) -> str:
    """The SHA-256 of a file, as hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def find_file_state(file: DataFile, folder: Path) -> FileState:
    """The state of the file in this folder: missing, corrupt, verified, or present without a known checksum."""
    path = folder / file.path
    if not path.is_file():
        return FileState.MISSING
    if file.sha256 is None:
        return FileState.PRESENT
    return FileState.VERIFIED if hash_file(path) == file.sha256 else FileState.CORRUPT


def require_files(data_set: PublicDataSet, folder: Path) -> None:
    """Raise an InputError if a file of the data set is missing or corrupt."""
    for file in data_set.files:
        state = find_file_state(file, folder)
        if state is FileState.MISSING:
            raise InputError(
                f"{data_set.title}: missing file: {folder / file.path}",
                hint=f"run `fedlog data fetch {data_set.name}`, or point {DATA_VARIABLE} (or --data-dir) at its folder",
            )
        if state is FileState.CORRUPT:
            raise InputError(
                f"{data_set.title}: wrong sha256, the file is corrupt: {folder / file.path}",
                hint=f"run `fedlog data fetch {data_set.name}` to replace it",
            )


_MNIST_FILES = {
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
MNIST = PublicDataSet(
    name="mnist",
    title="MNIST",
    homepage="https://yann.lecun.com/exdb/mnist/",
    terms="Yann LeCun and Corinna Cortes; CC BY-SA 3.0",
    citation="Y. LeCun, L. Bottou, Y. Bengio, P. Haffner: Gradient-based learning applied to document recognition. "
    "Proceedings of the IEEE 86(11), 1998",
    downloads=tuple(
        Download(
            url=f"https://ossci-datasets.s3.amazonaws.com/mnist/{name}",
            name=name,
            sha256=sha256,
            files=(DataFile(f"MNIST/raw/{name}", sha256),),
        )
        for name, sha256 in _MNIST_FILES.items()
    ),
)


def _make_cifar_data_set(classes: int, folder: str, sha256: str, files: tuple[tuple[str, str], ...]) -> PublicDataSet:
    archive = f"cifar-{classes}-binary.tar.gz"
    return PublicDataSet(
        name=f"cifar{classes}",
        title=f"CIFAR-{classes} (binary version)",
        homepage="https://www.cs.toronto.edu/~kriz/cifar.html",
        terms="no licence stated; cite Krizhevsky 2009",
        citation="A. Krizhevsky: Learning multiple layers of features from tiny images. University of Toronto, 2009",
        downloads=(
            Download(
                url=f"https://www.cs.toronto.edu/~kriz/{archive}",
                name=archive,
                sha256=sha256,
                archive="tar.gz",
                files=tuple(DataFile(f"{folder}/{name}.bin", digest) for name, digest in files),
            ),
        ),
    )


CIFAR10 = _make_cifar_data_set(
    10,
    "cifar-10-batches-bin",
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    (
        ("data_batch_1", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
        ("data_batch_2", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
        ("data_batch_3", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
        ("data_batch_4", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
        ("data_batch_5", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
        ("test_batch", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
    ),
)
CIFAR100 = _make_cifar_data_set(
    100,
    "cifar-100-binary",
    "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    (
        ("train", "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29"),
        ("test", "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a"),
    ),
)

HAR = PublicDataSet(
    name="har",
    title="UCI HAR (human activity recognition using smartphones)",
    homepage="https://archive.ics.uci.edu/dataset/240/human+activity+recognition+using+smartphones",
    terms="CC BY 4.0",
    citation="D. Anguita, A. Ghio, L. Oneto, X. Parra, J. L. Reyes-Ortiz: A public domain dataset for human activity "
    "recognition using smartphones. ESANN 2013",
    downloads=(
        Download(
            url="https://archive.ics.uci.edu/static/public/240/human+activity+recognition+using+smartphones.zip",
            name="human+activity+recognition+using+smartphones.zip",
            sha256=None,
            archive="zip",
            inner_zip="UCI HAR Dataset.zip",
            files=tuple(
                DataFile(f"UCI HAR Dataset/{split}/{name}_{split}.txt", None)
                for split in ("train", "test")
                for name in ("y", "subject", *(f"Inertial Signals/{signal}" for signal in HAR_SIGNALS))
            ),
        ),
    ),
)

PUBLIC_DATA_SETS = {data_set.name: data_set for data_set in (MNIST, CIFAR10, CIFAR100, HAR)}


def find_public_data_set(name: str) -> PublicDataSet:
    """The public data set of that name; InputError for an unknown name."""
    if name not in PUBLIC_DATA_SETS:
        hint = did_you_mean(name, PUBLIC_DATA_SETS, f"one of: {', '.join(PUBLIC_DATA_SETS)}; see fedlog data list")
        raise InputError(f"no data set of this name can be downloaded: {name}", hint=hint)
    return PUBLIC_DATA_SETS[name]
