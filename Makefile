# Everything runs from .venv, which the first target that needs it makes. Only Python 3.11 or newer
# and make have to be there: `make demo` and `make test` work from a fresh clone.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
# The helper modules in benchmarks/ are not run.
BENCHMARKS = $(shell grep -l '__main__' benchmarks/*.py 2>/dev/null)
MINUTES ?= 10

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-all fuzz lint format types bench clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Installing happens once, and again when pyproject.toml changes.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("intact needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; choose another with: make PYTHON=python3.11 ..." if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(STAMP) ## Quantize the model that comes with the package and compare both versions
	$(BIN)/intact demo

test: $(STAMP) ## Run the tests, without the slow ones
	$(BIN)/python -m pytest -n 2 -m 'not slow'

test-all: $(STAMP) ## Run every test
	$(BIN)/python -m pytest -n 2

fuzz: $(STAMP) ## Feed damaged files to everything that reads files (MINUTES=10)
	$(BIN)/python tools/fuzz.py --minutes $(MINUTES)

lint: $(STAMP) ## Check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP) ## Mend what ruff can mend, and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(STAMP) ## Check types
	$(BIN)/mypy

bench: $(STAMP) ## Run the benchmarks one after the other
	@test -n '$(BENCHMARKS)' || echo 'there are no benchmarks in benchmarks/'
	@set -e; for script in $(BENCHMARKS); do echo "== $$script"; $(BIN)/python $$script; done

clean: ## Remove caches, build output and the environment
	rm -rf $(VENV) out build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
