# `make` lists the targets. Each works right after a clone.

PYTHON ?= python3
export PYTHON

# pip: no version check, and PEP 517 builds, so that Python 3.10's pip builds pyspark as later ones do. Below, it compiles
# no module, as most of them are never imported.
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_USE_PEP517 := 1

venv := .venv
stamp := $(venv)/.installed

# JOBS processes, each with a Spark of 3 GB: three on two cores, as some tests wait for other processes. A test that hangs
# prints its stacks and ends its process.
JOBS ?= $(shell free --giga 2>/dev/null | awk '/^Mem/ { most = $$2 > 20 ? 3 : 2 } END { print most ? most : 2 }')
pytest = $(venv)/bin/python -m pytest -q -n $(JOBS) --no-loadscope-reorder --durations=15 \
	-o faulthandler_timeout=400 -o faulthandler_exit_on_timeout=true -m "not soak"

# Use the pinned Spark, whatever Spark the caller's shell is set up for. And keep compiled modules: without them, each
# Python process would compile what it imports, for seconds.
unexport SPARK_HOME SPARK_CONF_DIR PYSPARK_PYTHON PYSPARK_DRIVER_PYTHON PYSPARK_SUBMIT_ARGS PYTHONPATH PYTHONHOME \
	PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-servers test-all lint docs bench soak simulate matrix dist neighbors notebooks archive clean java
.NOTPARALLEL: # check for Java before installing anything

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: java $(stamp) ## turn a real archive into Delta tables under build/demo
	@rm -rf build/demo
	@./spark-submit.sh jobs/apply.py --config conf/demo.yaml

test: java $(stamp) ## run the tests, except the long ones and those that start PostgreSQL
	$(pytest) --ignore=tests/servers

test-servers: $(stamp) ## run the tests that start PostgreSQL servers, except the long ones
	$(pytest) tests/servers

test-all: java $(stamp) ## run all tests except the long ones at once, as CI does
	$(pytest)

lint: $(stamp) ## check style, format, types, and the direction of imports
	$(venv)/bin/ruff check
	$(venv)/bin/ruff format --check
	$(venv)/bin/mypy
	$(venv)/bin/lint-imports

docs: $(venv)/.docs ## build the site into build/site; broken links are errors
	@NO_MKDOCS_2_WARNING=1 $(venv)/bin/mkdocs build --strict
	@echo "build/site/index.html"

bench: java $(stamp) ## run the benchmarks: PARTS="decoding job" SCALE=0.1
	$(venv)/bin/python -m benchmarks $(PARTS) --scale $(or $(SCALE),1)

soak: java $(stamp) ## run the long tests that have not passed yet for this commit: SOAK=spark/long POSTGRES_SQL=…/src/test/regress/sql
	$(venv)/bin/python -m tools.soak $(SOAK)

simulate: $(stamp) ## run the simulation of nights that fail: SEEDS=100000 FIRST=0
	$(venv)/bin/python -m tests.simulation --seeds $(or $(SEEDS),10000) --first $(or $(FIRST),0)

matrix: java $(stamp) ## install and test the package with each supported Spark: SPARK=4.1
	$(venv)/bin/python -m tools.matrix $(SPARK)

dist: java $(stamp) ## build the sdist and the wheel in build/dist, and run the demo from each: REPOSITORY=https://…
	$(venv)/bin/python -m tools.dist $(REPOSITORY)

neighbors: java $(stamp) ## test the outputs for dbt, Dagster, and Airflow with these tools: TOOLS=dbt
	$(venv)/bin/python -m tools.neighbors $(TOOLS)

notebooks: java $(stamp) ## execute the notebooks and store their outputs
	$(venv)/bin/python -m tools.notebooks

archive: $(stamp) ## pack the package and its dependencies for a cluster: build/*.tar.gz
	@$(venv)/bin/python tools/pack.py

clean: ## remove everything that the targets created
	rm -rf build $(venv) spark-warehouse .pytest_cache .mypy_cache .ruff_cache .hypothesis ./*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

java:
	@tools/require.sh java python

$(stamp): pyproject.toml requirements.lock
	@tools/require.sh python
	@echo "Installing pinned versions into $(venv). This takes some minutes, once."
	@rm -rf $(venv)
	@$(PYTHON) -m venv $(venv)
	@$(venv)/bin/python -m pip install -q --no-compile -r requirements.lock
	@$(venv)/bin/python -m pip install -q --no-deps --no-build-isolation -e .
	@touch $@

$(venv)/.docs: $(stamp) requirements-docs.lock
	@$(venv)/bin/python -m pip install -q --no-compile -r requirements-docs.lock
	@touch $@
