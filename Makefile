# `make test` needs nothing but Python 3.10 and make: it builds .venv, finds or starts the
# services and says in the end what ran against what. `make help` lists the rest.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# What needs other packages than the tests has an environment of its own.
DEMO   := .venvs/demo
TOOLS  := .venvs/tools

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_PROGRESS_BAR := off
export PIP_ROOT_USER_ACTION := ignore

.DEFAULT_GOAL := help
.PHONY: help test unit lint format bench bench-quick services status services-down venv clean
.PHONY: chaos demo demo-web docs ecosystem package matrix

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort \
		| awk 'BEGIN {FS = ":.*## "} {printf "  make %-14s %s\n", $$1, $$2}'

test: $(STAMP) ## Everything: services, lint, types, imports, all tests, a summary (ARGS= for pytest)
	@$(BIN)/python -m tests.services.suite $(ARGS)

unit: $(STAMP) ## The fast tests: no database, no broker
	@$(BIN)/python -m pytest -q tests/unit $(ARGS)

lint: $(STAMP) ## Lint, formatting, types and import rules, without changing anything
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(STAMP) ## Format the code and apply the safe lint fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

demo: $(DEMO)/.installed ## See it work, in under a minute; needs no server (DATABASE_URL=, BROKER_URL=)
	@$(DEMO_DRIVERS)
	@cd examples/shop && ../../$(DEMO)/bin/python -m demo

demo-web: $(DEMO)/.installed ## The demo's shop in the browser, with its admin
	@$(DEMO_DRIVERS)
	@cd examples/shop && ../../$(DEMO)/bin/python -m demo.web

docs: $(TOOLS)/.installed ## Build the documentation into site/, warnings are errors
	@$(TOOLS)/bin/python docs/generate.py --check
	@NO_MKDOCS_2_WARNING=1 $(TOOLS)/bin/python -m mkdocs build --strict --quiet
	@echo "docs: site/index.html"

package: $(TOOLS)/.installed ## Build wheel and sdist, check them, run the fast tests on the wheel
	@$(TOOLS)/bin/python -m nox --session package

matrix: $(TOOLS)/.installed ## The fast tests on all supported versions of Python, Django, Celery
	@$(TOOLS)/bin/python -m nox --session matrix $(ARGS)

ecosystem: $(TOOLS)/.installed ## Other libraries in real projects, then the page "Works with"; needs Python 3.12
	@$(TOOLS)/bin/python -m nox --session ecosystem --reuse-venv=yes --error-on-missing-interpreters $(if $(ARGS),-- $(ARGS))
	@$(TOOLS)/bin/python -m tests.ecosystem

bench: $(STAMP) ## Measure everything; long, and wants an idle machine: docs/benchmarks
	@$(BIN)/python -m benchmarks $(ARGS)

bench-quick: $(STAMP) ## See that the benchmarks work, a few minutes: build/benchmarks
	@$(BIN)/python -m benchmarks --quick $(ARGS)

chaos: $(STAMP) ## Faults: every order of events on a model, then under load (EXPLORE=3 MINUTES=10 SEED= REPORT=)
	@$(BIN)/python -m tests.explorer --minutes $(or $(EXPLORE),3)
	@$(BIN)/python -m tests.chaos --minutes $(or $(MINUTES),10) \
		$(if $(SEED),--seed $(SEED)) $(if $(REPORT),--report $(REPORT))

services: ## Find or start the test services and print their variables (NAMES= for some)
	@$(PYTHON) -m tests.services up $(NAMES)

status: ## Say which services answer, and where
	@$(PYTHON) -m tests.services status

services-down: ## Stop the services that we started
	@$(PYTHON) -m tests.services down

venv: $(STAMP) ## Build or refresh .venv

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed: make PYTHON=python3.12 ...")'
	@$(PYTHON) -m tests.services packages
	@echo "venv: installing the package and the groups test and lint into $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	@$(BIN)/python -m pip install --quiet --editable . --group test --group lint
	@touch $@

# Drivers only where a URL asks for them.
DEMO_NEEDS := $(if $(findstring postgres,$(DATABASE_URL)),"psycopg[binary]") \
              $(if $(findstring mysql,$(DATABASE_URL))$(findstring mariadb,$(DATABASE_URL)),PyMySQL) \
              $(if $(findstring redis,$(BROKER_URL)),"celery[redis]")
DEMO_DRIVERS = $(if $(strip $(DEMO_NEEDS)),$(DEMO)/bin/python -m pip install --quiet $(DEMO_NEEDS))

$(DEMO)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed: make PYTHON=python3.12 ...")'
	@echo "demo: installing the package into $(DEMO)"
	@test -x $(DEMO)/bin/python || $(PYTHON) -m venv $(DEMO)
	@$(DEMO)/bin/python -m pip install --quiet --editable .
	@touch $@

$(TOOLS)/.installed: pyproject.toml
	@echo "tools: installing the group docs and the package's tools into $(TOOLS)"
	@test -x $(TOOLS)/bin/python || $(PYTHON) -m venv $(TOOLS)
	@$(TOOLS)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	@$(TOOLS)/bin/python -m pip install --quiet --editable . --group docs --group package
	@touch $@

clean: services-down ## Stop our services, remove .venv, caches and build results
	rm -rf $(VENV) .venvs .services build dist htmlcov site .coverage
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf *.egg-info
