# Every target does its own set-up: Python >= 3.11 with pip and venv is all that a fresh clone needs.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO_READY := $(VENV)/.ready-demo
TEST_PROCESSES ?= 2
# Tests of `make quick` often wait.
QUICK_PROCESSES ?= 3
ENGINES ?= ray,slurm,kubernetes,helm
PYTEST_ARGS ?=
DURATIONS := --durations=20 --durations-min=3
DEMO_ARGS ?=
SIM_ARGS ?=
RELEASE_ARGS ?=

help: ## show this list
	@grep -hE '^[a-z][a-z-]*:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(DEMO_READY) ## run four real training jobs on this machine under the scheduler
	$(BIN)/python -m demo $(DEMO_ARGS)

quick: $(READY) ## ruff, and the tests that start no process (two to five minutes on 2 quiet cores)
	$(BIN)/ruff check
	$(BIN)/python -m pytest -n $(QUICK_PROCESSES) --hypothesis-profile quick -m "$$($(BIN)/python -m tools.test_parts quick)" $(PYTEST_ARGS)

test: check ## check, then what a user's promise needs (10 to 20 minutes on 2 quiet cores)
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) -m "$$($(BIN)/python -m tools.test_parts usual)" $(DURATIONS) $(PYTEST_ARGS)

test-all: check ## check, then every test: papers, long searches, more seeds, engines (.ci/run)
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) $(DURATIONS) $(PYTEST_ARGS)

check: $(READY) ## ruff, mypy (strict), import-linter
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

engines-test: $(READY) ## install what the engines' tests need (as root; a build of two minutes, once), and run them
	$(if $(findstring slurm,$(ENGINES)),tools/slurm.sh)
	$(if $(findstring kubernetes,$(ENGINES)),tools/kube_apiserver.sh)
	$(if $(findstring helm,$(ENGINES)),PYTHON=$(BIN)/python tools/helm.sh)
	COADAPT_ENGINES=$(ENGINES) $(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder -m engine \
		$(DURATIONS) tests/demo tests/executors tests/cli/test_sbatch.py $(PYTEST_ARGS)

bench: $(READY) ## run the benchmarks, of one folder with ARGS=castor, and write benchmarks/results/
	$(BIN)/python -m benchmarks $(ARGS)

sim: $(READY) ## simulate all policies on the built-in workload (no download)
	$(BIN)/coadapt simulate builtin --cluster 16x4 --policy fifo,srtf,tiresias,optimus,pollux $(SIM_ARGS)

golden: $(READY) ## rewrite the golden list of public names and the state diagram
	$(BIN)/python -m tools.public_surface --write
	$(BIN)/python -m tools.state_diagram --write

docs: $(READY) ## build the documentation site into build/site, and check its links
	$(BIN)/python -c "import zensical" 2>/dev/null || $(BIN)/pip install --quiet -c constraints.txt zensical
	$(BIN)/python -m tools.docs.site

release: $(READY) ## VERSION=X.Y.Z: changelog, version, build, checks, commit, tag; RELEASE_ARGS=--dry-run
	$(BIN)/python -m tools.release $(VERSION) $(RELEASE_ARGS)

setup: $(READY) ## only make .venv

clean: ## remove .venv, caches and the demo's state
	rm -rf $(VENV) demo-run dist build .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# Containers often set this. Hundreds of Pythons would compile anew, each time, what they import.
unexport PYTHONDONTWRITEBYTECODE

# The stamp is written last, so a set-up that broke off is done again, and repairs what it finds.
$(READY): pyproject.toml constraints.txt tools/setup_venv.sh
	@tools/setup_venv.sh $(VENV) dev $(PYTHON)
	@touch $@ $(DEMO_READY)

# The demo needs a third of that, and no compiled kernels.
$(DEMO_READY): pyproject.toml constraints.txt tools/setup_venv.sh
	@tools/setup_venv.sh $(VENV) demo $(PYTHON)
	@touch $@

.PHONY: help demo quick test test-all check engines-test bench sim golden docs release setup clean
