# Every command sets up what it needs: some minutes the first time, a moment afterwards.
PYTHON ?= python3
RUN = scripts/run
ARGS ?=

.PHONY: help setup demo lab test check format docs screenshot sizes bench mutate soak lock clean

help: ## Lists the commands
	@sed -n 's/^\([a-z]*\):.*## /make \1 | /p' $(MAKEFILE_LIST) | column -t -s '|' 2>/dev/null || true

setup: ## Sets up .venv, PySpark, Java
	@$(PYTHON) scripts/setup.py

demo: setup ## Loads a year, kills the kernel, compares every stage with Spark
	@$(RUN) python -m demo $(ARGS)

lab: setup ## Opens JupyterLab on the tutorials
	@$(RUN) python scripts/lab.py $(ARGS)

test: ## Runs all tests: engine, Spark, notebooks, browser
	@$(PYTHON) scripts/setup.py --browser
	@$(RUN) python tests/support/machines/jvm.py
# Hundreds of processes import our modules: they leave them compiled, whatever is set outside.
	@$(RUN) env -u PYTHONDONTWRITEBYTECODE python -m pytest -n 3 --dist loadfile --no-loadscope-reorder $(ARGS)

check: setup ## Lint, format, types, direction of imports
	@$(RUN) ruff check
	@$(RUN) ruff format --check
	@$(RUN) python -m mypy
	@$(RUN) lint-imports --no-cache --no-logo

format: setup ## Formats the code, drops outputs of notebooks
	@$(RUN) ruff format
	@$(RUN) ruff check --fix
	@$(RUN) nbstripout tutorials/*.ipynb

docs: setup ## Builds the documentation as a site in site/
	@NO_MKDOCS_2_WARNING=1 $(RUN) mkdocs build -q
	@echo "site/index.html is written; its search needs a server: scripts/run mkdocs serve"

screenshot: ## Takes the pictures in docs/ from JupyterLab
	@$(PYTHON) scripts/setup.py --browser
	@NOSYNC_SCREENSHOTS=docs $(RUN) python -m pytest -q tests/notebook/test_browser.py

sizes: setup ## Reports modules, lines and files by folder
	@$(RUN) python scripts/sizes.py

bench: ## Measures against Spark and Pathway (half an hour; ARGS=--quick: some minutes)
	@$(PYTHON) scripts/setup.py --bench
	@$(RUN) python -m bench $(ARGS)

mutate: setup ## Changes the engine in 300 places, one at a time, and asks whether a test notices
	@$(RUN) python scripts/mutate.py $(ARGS)

soak: setup ## Runs the property and crash tests for hours, then the mutants
	@HYPOTHESIS_PROFILE=nightly $(RUN) python -m pytest --timeout=0 $(ARGS)
	@$(RUN) python scripts/mutate.py
	@$(RUN) python scripts/mutate_faults.py

# build.txt comes first, as nothing is built in isolation; the others agree with it.
LOCK = uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --upgrade
lock: ## Takes newer versions into scripts/locked, with their hashes (needs uv)
	$(LOCK) scripts/locked/build.in -o scripts/locked/build.txt
	$(LOCK) pyproject.toml --extra spark --extra cloud --extra dev --extra docs \
		-c scripts/locked/build.txt -o scripts/locked/dev.txt
	$(LOCK) scripts/locked/spark.in -c scripts/locked/build.txt -c scripts/locked/dev.txt \
		-o scripts/locked/spark.txt

clean: ## Removes what the set-up made here
	rm -rf .venv .tools site
