# `make` lists what there is. Each target works as the first thing typed after a clone.

PYTHON ?= python3
export PYTHON

# pip's own: no remark on its age, and the pip of Python 3.10 builds pyspark as later ones do.
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_USE_PEP517 := 1

venv := .venv
stamp := $(venv)/.installed

# The pinned Spark runs here, whatever Spark the caller's shell is set up for.
unexport SPARK_HOME SPARK_CONF_DIR PYSPARK_PYTHON PYSPARK_DRIVER_PYTHON PYSPARK_SUBMIT_ARGS PYTHONPATH PYTHONHOME

.DEFAULT_GOAL := help
.PHONY: help demo test test-servers lint docs bench soak matrix notebooks archive clean java
.NOTPARALLEL: # Java is asked for before anything is installed

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: java $(stamp) ## turn a real archive into Delta tables under build/demo
	@rm -rf build/demo
	@./spark-submit.sh jobs/apply.py --config conf/demo.yaml

test: java $(stamp) ## run the tests, except the long ones and those that start PostgreSQL
	@tools/test.sh $(venv)/bin/python

test-servers: $(stamp) ## run the tests that start PostgreSQL servers, except the long ones
	$(venv)/bin/python -m pytest -q -n 2 --dist loadfile -m "not soak" tests/servers

lint: $(stamp) ## check style, format, types and the direction of imports
	$(venv)/bin/ruff check
	$(venv)/bin/ruff format --check
	$(venv)/bin/mypy
	$(venv)/bin/lint-imports

docs: $(venv)/.docs ## build the site into build/site; a link that leads nowhere is an error
	@NO_MKDOCS_2_WARNING=1 $(venv)/bin/mkdocs build --strict
	@echo "build/site/index.html"

bench: java $(stamp) ## measure, and compare with others: PARTS="decoding job" SCALE=0.1
	$(venv)/bin/python -m benchmarks $(PARTS) --scale $(or $(SCALE),1)

soak: java $(stamp) ## run the long tests that have not passed yet for this commit: SOAK=spark/long
	$(venv)/bin/python -m tools.soak $(SOAK)

matrix: java $(stamp) ## install the package with each Spark that it is for, and test it there: SPARK=4.1
	$(venv)/bin/python -m tools.matrix $(SPARK)

notebooks: java $(stamp) ## execute the notebooks, and keep what they put out
	$(venv)/bin/python -m tools.notebooks

archive: $(stamp) ## pack the package and its libraries for a cluster: build/*.tar.gz
	@$(venv)/bin/python tools/pack.py

clean: ## remove all that these targets made
	rm -rf build $(venv) spark-warehouse .pytest_cache .mypy_cache .ruff_cache .hypothesis ./*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

java:
	@tools/require.sh java python

$(stamp): pyproject.toml requirements.lock
	@tools/require.sh python
	@echo "Installing pinned versions into $(venv): some minutes, once."
	@rm -rf $(venv)
	@$(PYTHON) -m venv $(venv)
	@$(venv)/bin/python -m pip install -q -r requirements.lock
	@$(venv)/bin/python -m pip install -q --no-deps --no-build-isolation -e .
	@touch $@

$(venv)/.docs: $(stamp) requirements-docs.lock
	@$(venv)/bin/python -m pip install -q -r requirements-docs.lock
	@touch $@
