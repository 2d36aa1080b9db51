# Each target sets up what it needs in a virtual environment of its own, then does its job.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SUITE ?= resnet50
# One more than there are cores, of which four are enough: tests of pages and processes wait for those.
WORKERS ?= $(shell n=$$(($$(nproc) + 1)); echo $$((n < 4 ? n : 4)))

# Tests start Python some hundred times, and to compile our files anew is half of each start: it may keep them.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: bench check test docs gpu-check clean
.DELETE_ON_ERROR:

bench: $(VENV)/.bench
	$(BIN)/convalgos bench $(SUITE)

check: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Threads that wait sleep soon: those of OpenBLAS would keep a core busy for some 20 ms after each product, which
# another worker could use.
test: check
	OMP_WAIT_POLICY=passive OPENBLAS_THREAD_TIMEOUT=4 $(BIN)/pytest -n $(WORKERS)

# The pages, in docs/_build/html: any warning fails, and every example in them and in the docstrings is run.
# CONVALGOS_LINKCHECK=1 looks at the links to other sites, too.
SPHINX = $(BIN)/python -m sphinx --quiet --nitpicky --fail-on-warning --keep-going -d docs/_build/doctrees
docs: $(VENV)/.docs
	$(SPHINX) -b html docs docs/_build/html
	OMP_WAIT_POLICY=passive $(SPHINX) -b doctest docs docs/_build/doctest
	$(if $(CONVALGOS_LINKCHECK),$(SPHINX) -b linkcheck docs docs/_build/linkcheck)
	@echo "the pages are in docs/_build/html/index.html"

# On a machine with a GPU, where PYTHON has NumPy and CuPy: nothing is installed. Less than eight minutes, with
# QUICK=1 less than three.
gpu-check:
	$(PYTHON) -m convalgos.tools.gpu_check --out $(or $(OUT),docs/results) $(if $(QUICK),--quick)

# The stamp of an extra is as new as its last installation; a changed pyproject.toml installs it again.
$(VENV)/.bench $(VENV)/.test $(VENV)/.docs: $(VENV)/.%: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(INSTALL_OPTIONS) --editable '.[$*]'
	touch $@

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache ci-artifacts asv_bench/html docs/_build
