# make demo | test | check | sanitize | test-arm | fuzz: each does all set-up by itself, in .venv, and is quick the second time.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
CONSTRAINTS ?= constraints.txt
# Even if the shell says otherwise, Python keeps what it compiles: else each of the tests' processes compiles torch anew.
export PYTHONDONTWRITEBYTECODE =
# --no-compile: Python compiles what is imported, pip would compile all of torch and transformers
PIP = $(BIN)/python -m pip install --quiet --no-compile --constraint $(CONSTRAINTS)
# worksteal: neighbours stay together, so a module's fixture is made once and not by both
PYTEST = $(BIN)/python -m pytest -n 2 --dist worksteal
SOURCES := pyproject.toml $(CONSTRAINTS) constraints-tested.txt CMakeLists.txt $(wildcard csrc/*)

# make test-slow adds the tests that take minutes.
.PHONY: demo test test-slow test-oldest-torch test-processors test-peers test-transformers test-arm test-llama check-gpu-code fuzz check sanitize format clean
.DELETE_ON_ERROR:

demo: $(VENV)/.core
	$(BIN)/gdn demo

test: $(VENV)/.test
	$(PYTEST)

test-slow: $(VENV)/.test
	$(PYTEST) -m 'slow or not slow'

# The oldest torch that pyproject.toml allows, in an environment of its own.
test-oldest-torch:
	$(MAKE) VENV=.venv-oldest CONSTRAINTS=constraints-oldest.txt test

# The tests whose results a processor may change, under every instruction set and library cap: see tools/processors.py.
test-processors: $(VENV)/.test
	$(BIN)/python tools/processors.py

# Tests of transformers and FLA themselves, with our code in the place of theirs: make test-peers TRANSFORMERS=DIR FLA=DIR,
# checkouts of their sources.
test-peers: $(VENV)/.test
	$(PIP) parameterized
	$(BIN)/python tools/peers/run.py $(if $(TRANSFORMERS),--transformers $(TRANSFORMERS)) $(if $(FLA),--fla $(FLA))

# Accelerated transformers, oldest and middle of the versions we accept, each in an environment of its own: slow.
test-transformers: $(VENV)/.test
	$(BIN)/python tools/transformers_versions.py

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --warnings
	$(PYTEST)

# The kernels under the address and undefined-behaviour sanitizers, their scratch memory filled with NaN.
sanitize: $(VENV)/.test
	cmake -S . -B build/sanitize -DGDN_SANITIZE=ON
	cmake --build build/sanitize --parallel 2
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)" ASAN_OPTIONS=detect_leaks=0 \
	UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 $(PYTEST) --native build/sanitize/libgdn.so -k 'cpp or native' tests/ops

# Recorded calls of every kernel replayed without Python: on this machine, and for ARM if there are a cross compiler and an emulator.
test-arm: $(VENV)/.test
	nice $(BIN)/python tools/native_replay.py

# Models of ours in the real llama.cpp, which is compiled first: ten minutes on two cores.
test-llama: $(VENV)/.test
	CMAKE_ARGS='-DLLAVA_BUILD=OFF -DLLAMA_CURL=OFF' nice $(PIP) --no-binary llama-cpp-python 'llama-cpp-python==0.3.36'
	$(BIN)/python -m pytest tests/interop/test_gguf.py tests/bench/test_transformers_speed.py -m 'slow or not slow'

# The kernels in Triton without a GPU: all of their tests in the interpreter, their code for real targets, the roofline.
check-gpu-code: $(VENV)/.test
	TRITON_INTERPRET=1 nice $(BIN)/python -m pytest tests/gpu -m 'slow or not slow'
	nice $(BIN)/python tools/gpu_code.py --keep
	$(BIN)/python tools/gpu_roofline.py

# Random calls of every op, held to the error budget: as many of each as CASES says.
CASES ?= 1000
fuzz: $(VENV)/.test
	$(BIN)/python tools/fuzz_ops.py --cases $(CASES)

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv .venv-oldest build dist .pytest_cache .hypothesis .ruff_cache

# torch from its CPU index where there is no GPU: see tools/torch_index.py
$(VENV)/.core: $(SOURCES) | $(VENV)/bin/python
	$(PIP) $$($(BIN)/python tools/torch_index.py) --editable .
	@$(BIN)/python tools/native_kernels.py
	@touch $@

$(VENV)/.test: $(SOURCES) | $(VENV)/bin/python
	$(PIP) $$($(BIN)/python tools/torch_index.py) --editable '.[test]'
	@$(BIN)/python tools/native_kernels.py
	@touch $(VENV)/.core $@

$(VENV)/.dev: $(SOURCES) | $(VENV)/bin/python
	$(PIP) $$($(BIN)/python tools/torch_index.py) --editable '.[dev]'
	@$(BIN)/python tools/native_kernels.py
	@touch $(VENV)/.core $(VENV)/.test $@

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "gated-deltanet needs Python 3.10 or newer, this is " + sys.version.split()[0] + "; try: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
