"""Both wheels of `make dist`, each installed alone in an environment without the sources, run what the README shows."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def script() -> ModuleType:
    """The script behind `make dist`."""
    spec = importlib.util.spec_from_file_location("wheels", ROOT / "tools" / "wheels.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


class Environment:
    """A new virtual environment with this wheel as its only package of ours.

    Dependencies are those of the environment that the tests run in, so that nothing is downloaded. The editable fedlog
    in it is not seen: a path that a .pth file adds is not searched for further .pth files.
    """

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder = folder
        venv.create(folder / "env", with_pip=False)
        self.bin = folder / "env" / "bin"
        # Before the dependencies are on its path: pip would take the fedlog beside them for one to replace.
        pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python")]
        subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)], check=True)
        (packages,) = (folder / "env" / "lib").glob("python*/site-packages")
        (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
        for path in Path(sys.executable).parent.glob("fl*w*r*"):  # the programs of Flower, for this interpreter
            lines = path.read_text().splitlines(keepends=True)
            (self.bin / path.name).write_text("".join([f"#!{self.bin / 'python'}\n", *lines[1:]]))
            (self.bin / path.name).chmod(0o755)

    def run(self, *command: str) -> str:
        """What the command prints; it must succeed."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        done = subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=self.folder,
            env={**environment, "PATH": f"{self.bin}{os.pathsep}/usr/bin{os.pathsep}/bin"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module", params=["compiled", "pure"])
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    folder = tmp_path_factory.mktemp(request.param)
    return Environment(folder, script().build(folder / "dist", pure=request.param == "pure"))


@pytest.mark.slow
def test_the_wheel_is_what_runs(installed: Environment) -> None:
    where = installed.run("python", "-c", "import fedlog; print(fedlog.__file__)").strip()
    assert Path(where).is_relative_to(installed.folder)
    blocks = (
        "from importlib.util import find_spec; print(find_spec('fedlog.engine.training.block._convolve') is not None)"
    )
    assert installed.run("python", "-c", blocks).strip() == str("compiled" in installed.folder.name)
    assert "compiled blocks" in installed.run("fedlog", "doctor")


@pytest.mark.slow
def test_a_run_writes_its_report(installed: Environment) -> None:
    said = installed.run("fedlog", "run", "--rounds", "2", "--out", "run", "--quiet")
    assert said == "report: run/report.html\n"
    assert "<svg" in (installed.folder / "run" / "report.html").read_text()


CONVOLUTIONS = """
import numpy as np, fedlog
draw = np.random.default_rng(0)
sites = {name: (draw.integers(0, 256, (40, 1, 16, 16), dtype=np.uint8), np.arange(40) % 2) for name in ("a", "b")}
print(fedlog.run(fedlog.Federation.from_arrays(sites), body="cnn-small", rounds=1, progress=False))
"""


@pytest.mark.slow
def test_a_network_with_convolutions_trains_with_and_without_the_compiled_passes(installed: Environment) -> None:
    assert "accuracy" in installed.run("python", "-c", CONVOLUTIONS)


@pytest.mark.slow
def test_the_quick_start_of_the_readme(installed: Environment) -> None:
    block = (ROOT / "README.md").read_text().split("```python\n")[1].split("```")[0]
    assert "accuracy" in installed.run("python", "-c", block)


@pytest.mark.slow
def test_the_demo(installed: Environment) -> None:
    assert installed.run("fedlog", "federate", "demo", "--rounds", "1").startswith("site ")
