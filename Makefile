# make demo | test | check | sanitize: each does all set-up by itself, in .venv, and is quick the second time.
PYTHON ?= python3
BIN := .venv/bin
PIP = $(BIN)/python -m pip install --quiet --constraint constraints.txt
SOURCES := pyproject.toml constraints.txt CMakeLists.txt $(wildcard csrc/*)

# make test-slow adds the tests that take minutes.
.PHONY: demo test test-slow check sanitize format clean
.DELETE_ON_ERROR:

demo: .venv/.core
	$(BIN)/gdn demo

test: .venv/.dev
	$(BIN)/python -m pytest -n 2

test-slow: .venv/.dev
	$(BIN)/python -m pytest -n 2 -m 'slow or not slow'

check: .venv/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --warnings
	$(BIN)/python -m pytest -n 2

# The kernels under the address and undefined-behaviour sanitizers, their scratch memory filled with NaN.
sanitize: .venv/.dev
	cmake -S . -B build/sanitize -DGDN_SANITIZE=ON
	cmake --build build/sanitize --parallel 2
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)" ASAN_OPTIONS=detect_leaks=0 \
	UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 $(BIN)/python -m pytest -n 2 --native build/sanitize/libgdn.so -k 'cpp or native' tests/ops

format: .venv/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv build dist .pytest_cache .hypothesis .ruff_cache

# torch from its CPU index where there is no GPU: see tools/torch_index.py
.venv/.core: $(SOURCES) | .venv/bin/python
	$(PIP) $$($(BIN)/python tools/torch_index.py) --editable .
	@$(BIN)/python tools/native_kernels.py
	@touch $@

.venv/.dev: $(SOURCES) | .venv/bin/python
	$(PIP) $$($(BIN)/python tools/torch_index.py) --editable '.[dev]'
	@$(BIN)/python tools/native_kernels.py
	@touch .venv/.core $@

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "gated-deltanet needs Python 3.10 or newer, this is " + sys.version.split()[0] + "; try: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
