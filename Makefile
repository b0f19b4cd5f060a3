# make demo: install into .venv, then compare Hugging Face and this vLLM on the bundled model.
# make test: the same install, then all tests.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
SOURCES := pyproject.toml setup.py upstream.toml patches/series $(wildcard patches/*.patch) \
	$(wildcard distribution/*.py) $(shell find csrc -type f) $(shell find vllm -type f -name '*.py')
OWN_CODE := distribution examples benchmarks tools tests vllm setup.py

.PHONY: install demo test test-long lint bench match-table determinism eval clean

install: $(INSTALLED)

$(INSTALLED): $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -e '.[dev]'
	touch $@

demo: install
	$(BIN)/python examples/hf_vs_vllm.py

test: install
	$(BIN)/python -m pytest

# The property, seed, beam, speculation, fuzz and exactness tests at full length: two hours or three.
test-long: install
	HF_COMPAT_TESTS=long $(BIN)/python -m pytest tests/hf_compat/test_generate.py \
		tests/hf_compat/test_speculation.py tests/hf_compat/test_beams.py \
		tests/server/test_fuzz.py tests/hf_numerics tests/upstream

lint: install
	$(BIN)/ruff check $(OWN_CODE)
	$(BIN)/ruff format --check $(OWN_CODE)
	$(BIN)/mypy

bench: install
	$(BIN)/python -m benchmarks.sequences_equal
	$(BIN)/python -m benchmarks.engine_throughput
	$(BIN)/python -m benchmarks.exact_throughput
	$(BIN)/python -m benchmarks.deterministic_accuracy
	$(BIN)/python -m benchmarks.deterministic_throughput
	$(BIN)/python -m benchmarks.penalty_kernel
	$(BIN)/python -m benchmarks.portable_operations
	$(BIN)/python -m benchmarks.portable_product
	$(BIN)/python -m benchmarks.sampler_step

# docs/match-table.md: hours on two cores; what was answered before is kept in build/.
match-table: install
	$(BIN)/python -m benchmarks.match_table

# docs/determinism.md: what changes the bits of answers, in this vLLM and upstream.
determinism: install
	$(BIN)/python -m benchmarks.determinism

# lm-evaluation-harness on Transformers and on this vLLM, score by score.
eval: install
	$(BIN)/python -m pip install --disable-pip-version-check -e '.[dev,eval]'
	$(BIN)/python -m benchmarks.lm_eval_parity

clean:
	rm -rf build $(VENV)
