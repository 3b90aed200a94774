# Two commands on a fresh machine: `make demo` and `make test`. Both build the environment first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
EXTRAS := dev
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help demo test lint format bench clean

help:
	@echo "make demo    generated sample data -> matches -> augmented dataset"
	@echo "make test    everything, offline, with coverage"
	@echo "make lint    ruff and mypy"
	@echo "make bench   speeds against named peers, in one run"

$(VENV)/.installed: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

$(VENV)/.bench: $(VENV)/.installed
	$(PIP_INSTALL) -c constraints.txt -e '.[bench]'
	@touch $@

demo: $(VENV)/.installed
	$(BIN)/strap demo --out demo

test: $(VENV)/.installed
	$(BIN)/python -m pytest -n auto --cov --cov-report=term-missing:skip-covered --cov-fail-under=90

lint: $(VENV)/.installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.bench
	$(BIN)/python benchmarks/search/cpu.py
	$(BIN)/python benchmarks/formats/video.py
	$(BIN)/python benchmarks/formats/rlds.py

clean:
	rm -rf $(VENV) demo .mypy_cache .ruff_cache .pytest_cache .coverage*
