# make demo | test | check: each does all set-up by itself, in .venv, and is quick the second time.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check format clean
.DELETE_ON_ERROR:

demo: .venv/.core
	$(BIN)/gdn demo

test: .venv/.dev
	$(BIN)/python -m pytest -n 2

check: .venv/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --warnings
	$(BIN)/python -m pytest -n 2

format: .venv/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv build dist .pytest_cache .hypothesis .ruff_cache

# torch first, from its CPU index where there is no GPU: see tools/torch_index.py
.venv/.core: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "gated-deltanet needs Python 3.10 or newer, this is " + sys.version.split()[0] + "; try: make PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt $$($(BIN)/python tools/torch_index.py) --editable .
	@touch $@

.venv/.dev: .venv/.core
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@
