"""`fedlog doctor`: show what this installation has, what it lacks, and what to do about it."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import fedlog
from fedlog.cli.command import count_cores
from fedlog.errors import InputError

REQUIRED = ("torch", "numpy", "scipy", "scikit-learn", "polars", "matplotlib")
# Extra of the package -> the package that it installs, and what it is needed for.
EXTRA_PACKAGES = {
    "federate": ("flwr", "real sites, over Flower"),
    "onnx": ("onnxruntime", "ONNX files"),
    "pretrained": ("efficientnet_lite_pytorch", "pretrained bodies"),
    "dp-sgd": ("opacus", "bodies trained under noise"),
    "dask": ("distributed", "many runs on a cluster"),
    "tensorboard": ("tensorboard", "curves in TensorBoard"),
    "mlflow": ("mlflow-skinny", "runs in MLflow"),
}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "firefox")
LITTLE_MEMORY, LITTLE_DISK = 2e9, 1e9


@dataclass(frozen=True)
class CheckResult:
    """The result of checking one part of the installation: its name, what was found, and a hint on what to change."""

    name: str
    value: str
    hint: str | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fedlog doctor`."""
    parser.set_defaults(handler=print_checks)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def print_checks(args: argparse.Namespace) -> None:
    """Print the results of all checks."""
    found = list(check_installation())
    if args.json:
        print(json.dumps([asdict(finding) for finding in found], indent=1))
        return
    width = max(len(finding.name) for finding in found)
    for finding in found:
        print(f"{finding.name:<{width}}  {finding.value}")
    for finding in found:
        if finding.hint is not None:
            print(f"hint: {finding.name}: {finding.hint}")


def check_installation() -> Iterator[CheckResult]:
    """Check packages, compiler, cores, memory, disk and data: they decide what works on this machine, and how fast."""
    yield CheckResult("fedlog", f"{fedlog.__version__} in {Path(fedlog.__file__).parent}")
    yield CheckResult("python", f"{platform.python_version()} in {sys.prefix}")
    yield CheckResult("system", platform.platform())
    for package in REQUIRED:
        yield CheckResult(
            package, _find_version(package) or "missing", None if _find_version(package) else "pip install fedlog"
        )
    yield from _check_compiler_and_processors()
    yield from _check_memory_and_disk()
    yield _check_data()
    for extra, (package, use) in EXTRA_PACKAGES.items():
        here = _find_version(package)
        yield CheckResult(extra, f"{package} {here}: {use}" if here else f"not installed: no {use}",
                            None if here else f"pip install 'fedlog[{extra}]'")  # fmt: skip
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    yield CheckResult("browser", browser or "none found", None if browser else "install one to look at reports")


def _find_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _check_compiler_and_processors() -> Iterator[CheckResult]:
    """Check the compiler, the compiled code, the cores and the graphics card."""
    compiled = find_spec("fedlog.engine.training.block._convolve") is not None
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    found = "none found"
    if compiler is not None:
        done = subprocess.run([*compiler.split(), "--version"], capture_output=True, text=True, check=False)
        found = f"{compiler}: {done.stdout.partition(chr(10))[0]}"
    yield CheckResult("compiler", found, None if compiled or compiler else "a C compiler makes convolutions faster")
    lacks = None if compiled else "convolutions are slower; with a C compiler: pip install --force-reinstall fedlog"
    yield CheckResult("compiled blocks", "yes" if compiled else "no", lacks)
    yield CheckResult("cores", f"{count_cores()} of {os.cpu_count()}")
    import torch

    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "none; everything runs on the cores"
    yield CheckResult("graphics card", card)


def _check_memory_and_disk() -> Iterator[CheckResult]:
    """Check the memory, and the free space on the disk of the current folder."""
    if hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names:
        page, total, free = (os.sysconf(name) for name in ("SC_PAGE_SIZE", "SC_PHYS_PAGES", "SC_AVPHYS_PAGES"))
        little = page * total < LITTLE_MEMORY
        yield CheckResult("memory", f"{page * total / 1e9:.1f} GB, {page * free / 1e9:.1f} GB unused",
                            "fewer worker processes need less: --jobs 1" if little else None)  # fmt: skip
    disk = shutil.disk_usage(Path.cwd())
    little = disk.free < LITTLE_DISK
    yield CheckResult(
        "disk", f"{disk.free / 1e9:.1f} GB free in {Path.cwd()}", "make room, or use --out" if little else None
    )


def _check_data() -> CheckResult:
    """Check which data sets are downloaded."""
    from fedlog.data.public_data_sets import PUBLIC_DATA_SETS, find_data_folder

    try:
        folder = find_data_folder(None)
    except InputError as error:
        return CheckResult("data folder", error.message, error.hint)
    here = [
        name
        for name, data_set in PUBLIC_DATA_SETS.items()
        if all((folder / file.path).exists() for file in data_set.files)
    ]
    hint = None if here else "fedlog data fetch mnist; digits and your own files need nothing"
    return CheckResult("data folder", f"{folder}: {', '.join(here) or 'empty'}", hint)
