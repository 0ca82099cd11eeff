# make quickstart   install into .venv and go from documents to cited answers on this machine
# make test         linters, types and tests
PYTHON ?= python3.11
BIN := .venv/bin
BASE := .venv/.installed-demo
DEV := .venv/.installed-demo-dev
INSTALL := $(BIN)/python -m pip install --quiet -c constraints.txt -e

.PHONY: quickstart test test-slow lint ruff format-check mypy format clean

quickstart: $(BASE)
	$(BIN)/ragray quickstart

test: lint
	$(BIN)/pytest

test-slow: $(DEV)
	$(BIN)/pytest -m "not gpu and not browser"

lint: ruff format-check mypy

ruff: $(DEV)
	$(BIN)/ruff check

format-check: $(DEV)
	$(BIN)/ruff format --check

mypy: $(DEV)
	$(BIN)/mypy

format: $(DEV)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf .venv build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is newer than what it was installed from, so nothing is installed twice.
$(BASE): pyproject.toml constraints.txt
	@$(call make_venv)
	@echo "Installing ragray and its dependencies into .venv (once; some minutes)"
	$(INSTALL) '.[demo]'
	@touch $@

$(DEV): pyproject.toml constraints.txt
	@$(call make_venv)
	@echo "Installing ragray, its dependencies and the developer tools into .venv (once; some minutes)"
	$(INSTALL) '.[demo,dev]'
	@touch $(BASE) $@

define make_venv
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	echo "ragray needs Python 3.11 or newer, and '$(PYTHON)' isn't one: install it, or name yours: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11" >&2; \
	exit 1; }; \
$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
endef
