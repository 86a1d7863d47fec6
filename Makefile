# Every target sets up what it needs: on a fresh clone `make demo` or `make test` is the only command.
# The environment is .venv; a stamp for each set of packages depends on pyproject.toml, so a second call
# installs nothing.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install -q
JOBS   ?= 2
ARGS   ?=

export PIP_DISABLE_PIP_VERSION_CHECK := 1

# Real data sets, where a folder of them lies beside the checkout; without it the tests that need them skip.
ifneq ($(wildcard ../shared/data),)
export FEDSPAN_DATA ?= $(abspath ../shared/data)
endif

.DEFAULT_GOAL := help
.PHONY: help setup demo test check soak docs bench format clean
.DELETE_ON_ERROR:

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# ------------------------------------------------------------------------------------------- set-up

$(VENV)/.stamp-venv:
	@$(PYTHON) -c 'import sys; v = sys.version.split()[0]; sys.version_info >= (3, 11) or sys.exit(f"fedspan needs Python 3.11 or newer; $(PYTHON) is {v}. Try: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.stamp-demo: pyproject.toml | $(VENV)/.stamp-venv
	$(PIP) -e .
	@touch $@

$(VENV)/.stamp-dev: pyproject.toml | $(VENV)/.stamp-venv
	$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/.stamp-demo

$(VENV)/.stamp-docs: pyproject.toml | $(VENV)/.stamp-venv
	$(PIP) -e '.[docs]'
	@touch $@ $(VENV)/.stamp-demo

setup: $(VENV)/.stamp-dev ## install everything the gate needs into .venv

# ---------------------------------------------------------------------------------------------- use

demo: $(VENV)/.stamp-demo ## see fedspan at work on a small federation
	$(BIN)/fedspan demo $(ARGS)

# --------------------------------------------------------------------------------------------- gate

# pytest-xdist already fills the cores; one BLAS thread for each worker keeps them from fighting.
check soak: export OMP_NUM_THREADS := 1
check soak: export OPENBLAS_NUM_THREADS := 1
check soak: export MKL_NUM_THREADS := 1

check: $(VENV)/.stamp-dev ## the whole gate: format, lint, types, import contract, tests, doctests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m pytest -n $(JOBS) $(ARGS)

test: check ## the same, from a fresh clone too

soak: $(VENV)/.stamp-dev ## the long tests: kills, fuzzing, large data, the papers' tables
	$(BIN)/python -m pytest -m soak $(ARGS)

# --------------------------------------------------------------------------------------------- rest

docs: $(VENV)/.stamp-docs ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(VENV)/.stamp-dev ## run the benchmarks (choose with ARGS=...)
	$(BIN)/python -m benchmarks $(ARGS)

format: $(VENV)/.stamp-dev ## rewrite the code in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove caches and builds (keeps .venv and runs)
	rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests benchmarks examples docs -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
