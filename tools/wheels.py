"""Build the two wheels of `make dist`: one for this machine with the compiled blocks, and a pure one for any."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "src")
EXTENSION = re.compile(r"^\[\[tool\.setuptools\.ext-modules\]\]\n(?:(?!\[).*\n)*", re.MULTILINE)


def build(out: Path, pure: bool) -> Path:
    """Build one wheel from a copy of the sources, and return its path."""
    with tempfile.TemporaryDirectory(prefix="fedlog-dist-") as temporary:
        tree = Path(temporary) / "tree"
        tree.mkdir()
        for name in SOURCES:
            if (ROOT / name).is_dir():
                leave_out = shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__")
                shutil.copytree(ROOT / name, tree / name, ignore=leave_out)
            else:
                shutil.copy(ROOT / name, tree)
        if pure:
            _drop_extension(tree / "pyproject.toml")
        made = Path(temporary) / "made"
        # Without isolation: the build needs nothing but setuptools, which is pinned and installed.
        command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(made), str(tree)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"error: the wheel was not built\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        (wheel,) = made.glob("*.whl")
        is_pure = wheel.name.endswith("-none-any.whl")
        if is_pure != pure:
            raise SystemExit(f"error: expected a {'pure' if pure else 'compiled'} wheel, found: {wheel.name}")
        out.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(wheel, out))


def _drop_extension(settings: Path) -> None:
    text, count = EXTENSION.subn("", settings.read_text())
    if not count:
        raise SystemExit(f"error: expected an extension to leave out in {settings.name}, found none")
    settings.write_text(text)


def main() -> None:
    """Build both into dist/."""
    for pure in (False, True):
        print(f"wrote: {build(ROOT / 'dist', pure).relative_to(ROOT)}")


if __name__ == "__main__":
    main()
