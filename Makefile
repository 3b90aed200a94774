# On a fresh machine, run `make demo` or `make test`. Both build the environment first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
SYSTEM_PACKAGES := libegl1 libgl1-mesa-dri chromium zsh fish

.PHONY: help demo test check lint format site bench soak fuzz chaos audit dist package lerobot system clean

help:
	@echo "make demo    sample data -> matches -> augmented dataset -> report page"
	@echo "make test    all tests, offline; COVERAGE=1 measures coverage too"
	@echo "make check   between edits: lint, types and the quick tests"
	@echo "make lint    ruff and mypy"
	@echo "make site    the documentation as a web site: site/index.html"
	@echo "make bench   speed beside other named packages, in one run"
	@echo "make soak    ten minutes of random searches, each compared with the reference"
	@echo "make chaos   300 kills of whole commands, each compared with an undisturbed run"
	@echo "make audit   known vulnerabilities of the pinned dependencies (needs a network)"
	@echo "make package build sdist and wheel, try the wheel alone on each supported Python (needs a network)"
	@echo "make lerobot check that one environment can hold LeRobot and STRAP; INSTALL=1 installs and runs both (needs a network)"
	@echo "make fuzz    ten minutes of damaged datasets, stores, runs and policies"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# One stamp per set of extras, so that `make demo` does not wait for the simulator.
$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) -e '.[encoders,figures,train,view]'
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) -e '.[dev,docs,encoders,figures,train,view,serve,rerun,zarr,hub,libero,ray]'
# openpi's client requires a numpy before 2 but works with later ones: --no-deps leaves it out.
	$(PIP_INSTALL) --no-deps openpi-client
	@touch $@ $(VENV)/.demo $(VENV)/.docs

$(VENV)/.docs: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) -e '.[docs]'
	@touch $@

$(VENV)/.bench: $(VENV)/.demo
	$(PIP_INSTALL) -e '.[bench]'
	@touch $@

# System packages: the simulator renders through OpenGL, the viewer is tested in a browser, completion
# in shells.
system:
	@if dpkg -s $(SYSTEM_PACKAGES) >/dev/null 2>&1 || ! command -v apt-get >/dev/null; then true; \
	elif [ "$$(id -u)" = 0 ]; then \
		apt-get update -qq && apt-get install -y -qq $(SYSTEM_PACKAGES) >/dev/null; \
	else \
		echo "the tests need OpenGL, a browser and shells; run: sudo apt-get install -y $(SYSTEM_PACKAGES)"; exit 1; \
	fi

demo: $(VENV)/.demo
	$(BIN)/strap demo --out demo

# One test process per CPU core and one more (tests/conftest.py), so each uses a single thread. The
# tests start many interpreters, so bytecode is written even if the environment disables it.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto

# With coverage, the tests take two fifths longer; .ci/run measures it.
COVERAGE ?=
test: system $(VENV)/.test
	$(PYTEST) $(if $(COVERAGE),--cov --cov-report=term:skip-covered --cov-fail-under=90)

check: lint
	$(PYTEST) -m "not slow"

lint: $(VENV)/.test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# A dead link or anchor, or a page that is in no menu, is an error (with --quiet it is overlooked). The
# search on the site needs a server: `python -m http.server --directory site`.
site: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(VENV)/.bench
	$(BIN)/python benchmarks/search/cpu.py
	$(BIN)/python benchmarks/formats/video.py
	$(BIN)/python benchmarks/formats/rlds.py

# Ten minutes of random problems; every way to search must give the reference's answer.
soak: $(VENV)/.demo
	$(BIN)/python tests/soak.py --minutes 10

# A quarter of an hour of kills, second starts and full disks; the next run must give the same result.
chaos: system $(VENV)/.test
	$(BIN)/python tests/chaos.py --kills 300 --seed 0

# Ten minutes of damaged inputs; each is refused with one line, or read as valid data.
fuzz: $(VENV)/.test
	$(BIN)/python tests/fuzz.py --minutes 10 --seed 0

# pip-audit queries a vulnerability service. It needs a network, so it is not part of lint.
audit: $(VENV)/.test
	$(PIP_INSTALL) pip-audit
	$(BIN)/pip-audit --strict --no-deps --disable-pip --requirement constraints.txt

# The packages that users get; the wheel is built from the sdist alone.
dist: $(VENV)/.test
	rm -rf dist
	$(BIN)/python -m build --quiet
	$(BIN)/twine check --strict dist/*

# Uses every supported Python that is installed, unless PYTHONS names some. EXTRAS are installed too:
# make package PYTHONS="python3.12 python3.13" EXTRAS=encoders,train
PYTHONS ?=
EXTRAS ?=
package: dist
	PYTHONS="$(PYTHONS)" EXTRAS=$(EXTRAS) .ci/try_wheel dist/*.whl

# Without our constraints, because LeRobot requires an older torch. By default nothing is installed. With INSTALL=1 both are
# installed in an environment outside the repository, and docs/recipes/lerobot.md runs there. On x86 this downloads 5 GB, takes
# 14 GB of /var/tmp (or TMPDIR) and, on two busy cores, 25 minutes: too much for .ci/run.
INSTALL ?=
lerobot: dist
ifeq ($(INSTALL),)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --dry-run --ignore-installed \
		"$$(grep -om1 'lerobot==[0-9.]*' docs/recipes/lerobot.md)" "$$(echo dist/*.whl)[encoders,train]"
	@echo "LeRobot and STRAP fit into one environment"
else
	PYTHON=$(PYTHON) .ci/try_lerobot dist/*.whl
endif

clean:
	rm -rf $(VENV) demo dist site .mypy_cache .ruff_cache .pytest_cache .coverage*
