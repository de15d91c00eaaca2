"""Run the command line as `python -m fedlog`, where the program `fedlog` is not on the path."""

from __future__ import annotations

import sys

from fedlog.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
