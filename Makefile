# Everything starts with `make`. Needs only make and Python 3.11 or newer; all else goes into .venv and .build.

SHELL := /bin/sh
PYTHON ?=
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
UV := .build/uv-venv/bin/uv

# With this set every process would compile every module again at every start.
unexport PYTHONDONTWRITEBYTECODE
unexport PYTHONPATH
unexport PYTHONHOME
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# Processes of a recipe are not part of this make: otherwise a make in a test or in an agent's command would be a
# sub-make, with its flags, and would print "Entering directory". `unexport` does not work for MAKELEVEL.
ALONE := env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL

.PHONY: help demo quick test test-unit test-slow test-browser check conformance bench chaos poison fuzz-api vendor lock clean setup
.DEFAULT_GOAL := help

help: ## Show this list
	@echo "make demo         run the log-triage agent on a recorded log, with a recorded answer of a model"
	@echo "make quick        the checks, then the unit tests: what to run before each commit, 90 seconds at most"
	@echo "make test-unit    the unit tests, which touch no process and no Redis, within a minute (ARGS='-k name' selects)"
	@echo "make test         run all tests (ARGS='-k name' selects)"
	@echo "make test-slow    the planner under 10,000 hostile histories (500 in make test)"
	@echo "make test-browser the console and Flower in a real browser; needs Chromium on PATH"
	@echo "make check        formatting, lint, types, import rules"
	@echo "make conformance  run the tests of the conformance checklist and print it as a table"
	@echo "make bench        measure speed and costs, beside Celery, LangGraph and DBOS (ARGS=--quick for a look)"
	@echo "make chaos        run random graphs while everything is being killed (ARGS='--runs 2000 --seed 7 --kill-every 2')"
	@echo "make poison       plant what cannot be read, fill disks, restore old data, mix releases (ARGS='--runs 1000 --seed 7')"
	@echo "make fuzz-api     10,000 random requests to the HTTP API, from its OpenAPI document (ARGS='--cases 1000 --seed 7')"
	@echo "make test-cluster the tests of the store and of the system on a Redis Cluster (NODES=6 for more than three nodes)"
	@echo "make test-brokers RabbitMQ as Celery's broker; needs Debian's rabbitmq-server"
	@echo "make vendor       fetch the npm packages that pages use, anew; needs npm"
	@echo "make lock         write requirements.lock anew from pyproject.toml"
	@echo "make clean        delete .venv, .build and caches"
	@echo
	@echo "The first one that needs it sets up .venv. PYTHON=/path/to/python3 chooses the interpreter."

setup: $(READY)

$(READY): requirements.lock pyproject.toml
	@set -e; \
	python='$(PYTHON)'; \
	if [ -z "$$python" ]; then \
	  for name in python3.11 python3.12 python3 python3.13 python3.14 python; do \
	    if $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then python=$$name; break; fi; \
	  done; \
	fi; \
	if [ -z "$$python" ]; then \
	  echo "error: no Python 3.11 or newer on PATH. Install one, or say where it is: make PYTHON=/path/to/python3" >&2; exit 1; \
	fi; \
	if ! "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then \
	  echo "error: $$python is not a Python 3.11 or newer." >&2; exit 1; \
	fi; \
	if ! "$$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then \
	  echo "error: $$python cannot make virtual environments: the modules venv and ensurepip are missing." >&2; \
	  echo "       On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; \
	fi; \
	"$$python" ops/setup.py; \
	touch $(READY)

demo: $(READY) ## Run the shipped agent, with everything it writes in .build/demo
	@$(ALONE) ops/demo

# With the caches of ruff, mypy and import-linter only changed files are checked.
quick: check test-unit

test-unit: $(READY)
	@$(ALONE) $(BIN)/python -m pytest -n 2 --dist worksteal -q --hypothesis-profile unit tests/unit $(ARGS)

# Four processes, even on two cores: tests of faults mostly wait until the fault is detected.
test: $(READY)
	@$(ALONE) $(BIN)/python -m pytest -n 4 --dist loadscope --no-loadscope-reorder $(ARGS)

test-slow: $(READY)
	@$(ALONE) $(BIN)/python -m pytest -n 2 -q --hypothesis-profile slow \
	  tests/unit/planner/test_plan_properties.py tests/unit/planner/test_spawning_properties.py \
	  tests/unit/planner/test_determinism.py $(ARGS)

test-browser: $(READY)
	@$(ALONE) $(BIN)/python -m pytest -q tests/browser $(ARGS)

check: $(READY)
	@$(ALONE) ops/check

conformance: $(READY)
	@$(ALONE) $(BIN)/python -m pytest -n 2 -q -p tests.conformance_report -m conformance $(ARGS)

bench: $(READY)
	@$(ALONE) $(BIN)/python ops/bench/run.py $(ARGS)

chaos: $(READY)
	@$(ALONE) $(BIN)/python ops/chaos/run.py $(ARGS)

fuzz-api: $(READY)
	@$(ALONE) $(BIN)/python ops/fuzz_api.py $(ARGS)

poison: $(READY)
	@$(ALONE) $(BIN)/python ops/chaos/poison.py $(ARGS)

# Not a test_*.py, because the suite must not depend on installed programs.
.PHONY: test-brokers
test-brokers: $(READY)
	@$(ALONE) $(BIN)/python -m pytest -q -o timeout=600 tests/brokers/rabbitmq.py $(ARGS)

# What needs one Redis, or its own, is not run. `make test` has a short form: tests/system/test_redis_cluster.py.
.PHONY: test-cluster
NODES ?= 3
test-cluster: $(READY)
	@$(ALONE) env TESTED_REDIS_NODES=$(NODES) $(BIN)/python -m pytest -n 4 --dist loadscope --no-loadscope-reorder \
	  -m "not one_redis" tests/store tests/system $(ARGS)

vendor:
	@ops/vendor

lock: $(UV)
	@UV_PYTHON_DOWNLOADS=never $(UV) pip compile pyproject.toml --all-extras --generate-hashes --no-emit-index-url \
	  --no-emit-find-links --no-annotate --no-header --python-version 3.11 --system-certs --quiet -o requirements.lock
	@git diff --stat -- requirements.lock

$(UV):
	@python3 -m venv .build/uv-venv
	@.build/uv-venv/bin/python -m pip install --quiet uv

clean:
	[ ! -d .build ] || chmod -R u+w .build
	rm -rf $(VENV) .build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
