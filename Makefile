# `make demo` and `make test` work on a fresh machine: they make .venv first, from the pinned constraints.
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready

# The first of these that runs, is supported and can make a virtual environment; the first is the one that is tested.
PYTHONS := python3.11 python3.12 python3.13 python3
SUPPORTED := import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PYTHON ?= $(shell for python in $(PYTHONS); do $$python -c '$(SUPPORTED)' >/dev/null 2>&1 && echo $$python && break; done)

SUDO := $(shell test "$$(id -u)" = 0 || echo sudo)

export OMP_NUM_THREADS := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test lint soak chaos golden picture chromium clean

demo: $(STAMP)
	$(BIN)/omni run recipe=qwen3_omni --prompt "What is the capital of France?" --voice chelsie --seed 5
	$(BIN)/omni run recipe=qwen_image --prompt "a red heart on a blue background" --seed 5

# In two processes, each with rings, ports and folders of its own. Unit tests first: they fail within a minute.
test: $(STAMP) lint chromium
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile tests/unit
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --ignore tests/unit

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

soak: $(STAMP) chromium
	OMNI_SOAK=1 $(BIN)/python -m pytest

# CHAOS="--minutes 30" ends it earlier; a round that fails says by which command it is repeated.
chaos: $(STAMP)
	$(BIN)/python -m tests.chaos $(CHAOS)

golden: $(STAMP)
	OMNI_UPDATE_GOLDEN=1 $(BIN)/python -m pytest tests/recipes

picture: $(STAMP) chromium
	$(BIN)/python docs/timeline.py docs/timeline.svg
	PYTHONPATH=. $(BIN)/python docs/playground.py docs/playground.png
	PYTHONPATH=. $(BIN)/python docs/nano.py docs

# The page of the server is tested in it. Debian's package; elsewhere, put a `chromium` into the PATH.
chromium:
	@command -v chromium >/dev/null || { $(SUDO) apt-get update --quiet=2 && $(SUDO) apt-get install --yes --quiet=2\
	 --no-install-recommends chromium fonts-dejavu-core; } || { echo "omni's tests need Chromium: install one that is called\
	 chromium" >&2; exit 2; }

# torch is named with its pin, so that pip decides on it and on what needs it at once.
$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" && '$(PYTHON)' -c '$(SUPPORTED)' 2>/dev/null || { echo "omni needs Python 3.11, 3.12 or 3.13 with\
	 venv and ensurepip. Not so: $(or $(PYTHON),$(PYTHONS)). Install one, or name it: make PYTHON=PATH" >&2; exit 2; }
	test -x $(BIN)/python || '$(PYTHON)' -m venv $(VENV)
	@echo "installing into $(VENV); README.md says what is downloaded"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch==2.13.0 --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
