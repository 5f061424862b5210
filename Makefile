# `make demo` and `make test` work on a fresh machine: they make .venv first, from the pinned constraints.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
export OMP_NUM_THREADS := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test lint soak clean golden

demo: $(STAMP)
	$(BIN)/omni run recipe=qwen3_omni --prompt "What is the capital of France?"

test: $(STAMP) lint
	$(BIN)/python -m pytest

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

soak: $(STAMP)
	OMNI_SOAK=1 $(BIN)/python -m pytest -m "soak or not soak"

golden: $(STAMP)
	OMNI_UPDATE_GOLDEN=1 $(BIN)/python -m pytest tests/recipes

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch==2.13.0 --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
