# Helios. `make setup` once is enough; the others call it and it takes no time when nothing changed.
PYTHON ?= python3.11
TORCH_INDEX ?=
ARGS ?=
PIP_TOOLS := pip-tools==7.6.2
BIN := .venv/bin

.PHONY: help setup serve test check lock

help:
	@echo "make setup              make .venv from the lock (TORCH_INDEX=URL: take torch from there)"
	@echo "make serve ARGS=...     set up and start the server, e.g. ARGS=\"--port 8123\""
	@echo "make test ARGS=...      set up and run the tests, e.g. ARGS=\"tests/scheduler\""
	@echo "make check              formatting, lint, types, import rules, size limits"
	@echo "make lock ARGS=...      resolve the dependencies again, e.g. ARGS=\"--upgrade\""

setup:
	@command -v $(PYTHON) >/dev/null || { echo "setup: $(PYTHON) is not installed; install Python 3.11, or name another: make setup PYTHON=python3.12" >&2; exit 1; }
	@TORCH_INDEX="$(TORCH_INDEX)" $(PYTHON) deploy/setup_environment.py

serve: setup
	@exec $(BIN)/helios serve $(ARGS)

test: setup
	@$(BIN)/python tests/in_two.py $(ARGS)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest tests/house/test_size_limits.py

lock: setup
	@$(BIN)/python -m pip install --quiet $(PIP_TOOLS)
	@$(BIN)/python deploy/lock.py $(ARGS)
