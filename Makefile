# Two commands do everything on a fresh machine: `make run` and `make test`. Both set up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Python compiles modules when they are first imported, and keeps them, whatever containers tell it: all of them at once take
# half of the time (81 s for 45).
unexport PYTHONDONTWRITEBYTECODE
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
SPEC ?= specs/gla.yaml

.PHONY: run test lint types fresh check clean

run: $(VENV)/.ready  ## compile SPEC, then run the op forward and backward on this machine
	$(BIN)/glagen compile $(SPEC)
	$(BIN)/glagen run $(SPEC)

test: $(VENV)/.ready  ## the whole suite
	$(BIN)/python -m pytest -q -n auto --dist worksteal

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.ready
	$(BIN)/mypy

fresh: $(VENV)/.ready  ## is generated/ what the specs compile to?
	$(BIN)/glagen compile --check specs/*.yaml

check: lint types fresh test

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) torch
	$(INSTALL) -e '.[triton,dev]'
	touch $@

clean:
	rm -rf $(VENV)
