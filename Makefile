# make demo: install into .venv, then compare Hugging Face and this vLLM on the bundled model.
# make test: the same install, then all tests.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
SOURCES := pyproject.toml setup.py upstream.toml patches/series $(wildcard patches/*.patch) \
	$(wildcard distribution/*.py) $(shell find csrc -type f) $(shell find vllm -type f -name '*.py')
OWN_CODE := distribution examples benchmarks tools tests vllm setup.py

.PHONY: install demo test lint bench clean

install: $(INSTALLED)

$(INSTALLED): $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -e '.[dev]'
	touch $@

demo: install
	$(BIN)/python examples/hf_vs_vllm.py

test: install
	$(BIN)/python -m pytest

lint: install
	$(BIN)/ruff check $(OWN_CODE)
	$(BIN)/ruff format --check $(OWN_CODE)
	$(BIN)/mypy

bench: install
	$(BIN)/python -m benchmarks.sequences_equal
	$(BIN)/python -m benchmarks.engine_throughput
	$(BIN)/python -m benchmarks.penalty_kernel

clean:
	rm -rf build $(VENV)
