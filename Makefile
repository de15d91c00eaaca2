# Every target works from a fresh clone: it makes .venv and installs the pinned versions once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help install install-hashed lock sbom run check test test-slow bench docs docs-site screenshots notebooks dist clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## */  make \1\t/' | expand -t 18

# torch first and alone: resolving it together with a loose range elsewhere would pull gigabytes of CUDA packages.
$(READY): pyproject.toml constraints.txt $(wildcard src/fedlog/engine/training/block/*.[ch])
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: Python 3.11 or newer is needed: $$($(PYTHON) --version)" >&2; echo "hint: make PYTHON=python3.12 ..." >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $(READY)

install: $(READY)  ## make .venv with the package, its extras and the pinned versions

# --no-deps: the list is complete, and pip would want a hash for every dependency that it looks up.
install-hashed:  ## make .venv from requirements-hashed.txt: every file must have the SHA-256 that is written there
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes --requirement requirements-hashed.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $(READY)

lock: $(READY)  ## write requirements-hashed.txt for this platform and package index
	$(BIN)/python tools/lock_hashes.py

sbom: $(READY)  ## write sbom.json: every installed package with version and licence (CycloneDX)
	$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --output-file sbom.json $(BIN)/python

run: $(READY)  ## train FedLog on the data that comes with the package, and write a report (under two minutes)
	$(BIN)/fedlog run

check: $(READY)  ## linter, formatter and type checker only
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The type checker runs beside the tests, which take longer; all that it says is shown after them.
# Compiled sources are kept even where the environment forbids it: tests start many processes that import them.
test: export PYTHONDONTWRITEBYTECODE =
test: $(READY)  ## linter, type checker and tests, as CI runs them
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@types=$$(mktemp); $(BIN)/mypy >$$types 2>&1 & mypy=$$!; \
	$(BIN)/pytest -n 2; failed=$$?; \
	wait $$mypy || failed=1; cat $$types; rm $$types; exit $$failed

test-slow: $(READY)  ## the checks that take minutes or need a real data set in FEDLOG_DATA
	$(BIN)/pytest -m slow

bench: $(READY)  ## time the solver and the simulator, and write the records under benchmarks/
	$(BIN)/python -m benchmarks

docs: $(READY)  ## write the generated pages of docs/ from the committed records
	$(BIN)/fedlog docs

screenshots: $(READY)  ## take the screenshots under docs/images again; needs Chromium and chromedriver
	$(BIN)/python tests/screenshots.py

# Material's notice about its own future is no warning about our pages. Without --quiet, which would silence warnings
# before --strict counts them.
docs-site: $(READY)  ## build the documentation site into site/, with warnings as errors and links checked
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

notebooks: $(READY)  ## run the notebooks of examples/ again, and keep what they show
	$(BIN)/python examples/execute.py

dist: $(READY)  ## build two wheels into dist/: with the compiled blocks for this machine, and a pure one
	$(BIN)/python tools/wheels.py

clean:  ## remove .venv and every cache
	rm -rf $(VENV) build dist site src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
