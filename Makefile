# The same verbs here and in CI. Needs Python 3.11+ with pip; `make setup` brings everything else.
PYTHON ?= python3
BIN := .venv/bin
NAME := tictactoe
# Twice as many processes as cores: the tests wait for a third to a half of their time, mostly for processes they start.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(min(8, 2 * (os.cpu_count() or 1)))')
TESTS := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations 20
LINT := $(BIN)/ruff check && $(BIN)/ruff format --check && $(BIN)/lint-imports --no-logo && $(BIN)/typos
# Set, it makes each of the thousands of processes that tests start compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE
.DEFAULT_GOAL := help
.PHONY: help setup fmt check test test-rest test-all coverage docs names hooks demo screenshots experiment bench lock clean

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup:  ## Make .venv ready (seconds to minutes; nothing to do if nothing changed)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		printf 'error: Wander needs Python 3.11 or newer\n\nhint: run `make setup PYTHON=python3.12`\n' >&2; exit 2; }
	@$(PYTHON) scripts/set_up.py

fmt: setup  ## Format the code and fix what ruff can fix
	@$(BIN)/ruff check --fix --quiet || true
	@$(BIN)/ruff format

check: setup  ## Lint, formatting, strict types, walls between folders, spelling
	@$(BIN)/mypy & types=$$!; $(LINT) || { kill $$types 2>/dev/null; exit 1; }; wait $$types

# mypy runs next to the tests; its errors are printed at the end.
test: setup  ## Everything above and tests of every kind, in minutes (no GPU, no key, no internet)
	@$(LINT)
	@said=$$(mktemp); trap 'rm -f $$said' EXIT; $(BIN)/mypy > $$said 2>&1 & types=$$!; \
		$(TESTS) -m "not full and not slow and not gpu" $(PYTEST); tests=$$?; \
		wait $$types || { cat $$said; exit 1; }; exit $$tests

test-rest: setup  ## The tests that `make test` leaves out
	@$(TESTS) -m "full and not slow and not gpu" $(PYTEST)

test-all: test test-rest  ## Every test; what CI runs

coverage: setup  ## Every test, and the lines that none of them ran in its own process (two thirds longer)
	@$(TESTS) -m "not slow and not gpu" --cov --cov-report=term $(PYTEST)

docs: setup  ## Run every code block of the README and of docs/
	@$(BIN)/python -m pytest tests/docs $(PYTEST)

names: setup  ## Record the public names and signatures again, after a deliberate change
	@$(BIN)/python tests/harness/public_names.py

hooks: setup  ## Have git run ruff, typos and a check for large files before each commit
	@$(BIN)/pre-commit install

demo: setup  ## The whole loop on real input, at most 15 minutes on 2 cores
	@$(BIN)/python scripts/demo.py

screenshots: setup  ## Draw every page at three widths, light and dark, and fail on faults of its layout
	@$(BIN)/python scripts/screenshots.py

experiment: setup  ## Tic-tac-toe from nothing to master, three seeds; NAME=reverse_text another (experiments/)
	@$(BIN)/python experiments/run.py $(NAME) $(EXPERIMENT)

bench: setup  ## Ratios against peers (see benchmarks/README.md)
	@$(BIN)/python benchmarks/run.py

lock: setup  ## Resolve constraints.txt again
	@$(PYTHON) scripts/set_up.py --lock

clean:  ## Remove what was built; keeps .venv and its downloads
	@rm -rf demo-output screenshots-output site .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	@find sdk compat client plugins hub environments tests -name __pycache__ -type d -prune -exec rm -rf {} +
