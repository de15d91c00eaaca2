"""The compiled passes on processors and by compilers other than this machine's: what can be tried of that here."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from fedlog.engine.training.block import convolve, library
from fedlog.engine.training.block.convolve import ConvShape, convolve_and_pool
from fedlog.engine.training.block.map_passes import NormFunction, NormShape

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src/fedlog/engine/training/block"
SHAPE = ConvShape(3, 6, 9, 8, 3, 3, 2, 2, rectify=True, pad_top=1, pad_left=1, pad_bottom=1, pad_right=1)
CLIENTS, BATCH = 2, 10

pytestmark = pytest.mark.skipif(not library.AVAILABLE, reason="the passes are not compiled here")

# Runs a forward pass without torch, which may need more than this processor has.
FORWARD = """
import array, ctypes, sys
library, fields, inputs, weight, bias, out, count = sys.argv[1:]
passes = ctypes.CDLL(library)
sizes = (ctypes.c_int64 * len(fields.split(',')))(*map(int, fields.split(',')))
read = lambda path: (ctypes.c_float * (len(open(path, 'rb').read()) // 4)).from_buffer_copy(open(path, 'rb').read())
passes.convolve_scratch.restype = ctypes.c_int64
scratch = (ctypes.c_float * passes.convolve_scratch(sizes))()
pooled, winners = (ctypes.c_float * int(count))(), (ctypes.c_float * int(count))()
passes.convolve_forward_float(sizes, read(inputs), read(weight), read(bias), pooled, winners, scratch)
open(out, 'wb').write(bytes(pooled))
print(passes.convolve_instructions())
"""


def _tensors() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    return torch.randn(CLIENTS, 3, 9, 8, BATCH), torch.randn(CLIENTS, 6, 3, 3, 3), torch.randn(CLIENTS, 6)


def test_only_the_passes_chosen_at_run_time_go_beyond_the_baseline() -> None:
    """An instruction of AVX has a name that begins with v; one outside of the chosen passes would end the program."""
    if shutil.which("objdump") is None:
        pytest.skip("objdump is not installed")
    assert library.LIBRARY is not None
    listing = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", library.LIBRARY._name], capture_output=True, text=True, check=True
    ).stdout
    beyond, name = set[str](), ""
    for line in listing.splitlines():
        if found := re.match(r"[0-9a-f]+ <(.+)>:", line):
            name = found[1]
        elif re.search(r":\tv[a-z]", line):
            beyond.add(name)
    if library.name_instruction_set() in ("AVX2", "AVX-512"):
        assert beyond, "no pass uses AVX: the listing was not understood"
    assert [one for one in sorted(beyond) if not re.search(r"_(avx2|avx512)\b", one)] == []


@pytest.mark.slow
def test_a_wheel_built_here_runs_on_a_processor_without_avx2(tmp_path: Path) -> None:
    """Built by pip, unpacked, and run on an emulated processor of 2008, on which any later instruction is illegal."""
    if shutil.which("qemu-x86_64") is None:
        pytest.skip("qemu-x86_64 is not installed")
    wheel = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    subprocess.run([*wheel, str(ROOT)], check=True, cwd=tmp_path)
    (built,) = tmp_path.glob("fedlog-*.whl")
    zipfile.ZipFile(built).extractall(tmp_path / "unpacked")
    (library,) = (tmp_path / "unpacked").rglob("_convolve*.so")
    files = []
    for name, value in zip(("inputs", "weight", "bias"), _tensors(), strict=True):
        (tmp_path / name).write_bytes(value.numpy().tobytes())
        files.append(str(tmp_path / name))
    expected = _plain_forward()
    sizes = [CLIENTS, BATCH, *(int(getattr(SHAPE, name)) for name in convolve._FIELDS[2:])]
    arguments = [str(library), ",".join(map(str, sizes)), *files, str(tmp_path / "pooled"), str(expected.numel())]
    command = ["qemu-x86_64", "-cpu", "Nehalem", sys.executable, "-c", FORWARD, *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "0"  # it saw that there is no AVX2
    found = torch.frombuffer(bytearray((tmp_path / "pooled").read_bytes()), dtype=torch.float32)
    assert torch.equal(found.view(expected.shape), expected)


def _plain_forward() -> torch.Tensor:
    switch = ctypes.c_int.in_dll(library.LIBRARY, "convolve_plainly")
    switch.value = 1
    try:
        with torch.no_grad():
            return convolve_and_pool(SHAPE, *_tensors())
    finally:
        switch.value = 0


def _convolution() -> list[torch.Tensor]:
    """A pooled map and its gradients, by the library that is loaded."""
    tensors = [value.requires_grad_(True) for value in _tensors()]
    maps = convolve_and_pool(SHAPE, *tensors)
    return [maps, *torch.autograd.grad(maps.square().sum(), tensors)]


def _norm() -> list[torch.Tensor]:
    """A normalised map and its gradients, by the library that is loaded."""
    maps = _tensors()[0].requires_grad_(True)
    factor = torch.linspace(0.5, 2, 6).view(2, 3).requires_grad_(True)
    normed = NormFunction.apply(maps, factor, factor - 1, NormShape(1, 3, 9, 8, 1e-5, True, 2, 2))
    return [normed, *torch.autograd.grad(normed.square().sum(), (maps, factor))]


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_another_compiler_gives_the_same_numbers(
    compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    flags = [
        "-shared",
        "-fPIC",
        "-O3",
        "-fno-trapping-math",
        "-fno-math-errno",
        "-Wno-psabi",
        "-Wno-unknown-warning-option",
    ]
    sources = [str(SOURCES / name) for name in ("convolve.c", "maps.c", "pixels.c", "adam.c", "linear.c")]
    subprocess.run([compiler, *flags, *sources, "-o", str(tmp_path / "passes.so")], check=True)
    other = ctypes.CDLL(str(tmp_path / "passes.so"))
    other.convolve_scratch.restype = other.norm_scratch.restype = ctypes.c_int64
    convolved, normed = _convolution(), _norm()
    monkeypatch.setattr(library, "LIBRARY", other)
    assert all(torch.equal(one, own) for one, own in zip(convolved, _convolution(), strict=True))
    for one, own in zip(normed, _norm(), strict=True):
        torch.testing.assert_close(own, one, rtol=1e-5, atol=1e-5)
