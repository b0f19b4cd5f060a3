# make help lists what can be made: each target of it has its line here, after "##".

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev
SOURCES := pyproject.toml setup.py upstream.toml patches/series $(wildcard patches/*/*.patch) \
	$(wildcard distribution/*.py) CMakeLists.txt \
	$(shell find cmake csrc -type f) $(shell find vllm -type f -name '*.py')
OWN_CODE := distribution examples benchmarks tools tests vllm setup.py
# Bytecode is left to the first import: compiling all of it would take longer than all else.
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --no-compile
QUIETLY := $(PYTHON) -m distribution.quiet

.NOTPARALLEL:
.PHONY: help plan install dev demo test test-fast test-long wheel docs docs-serve lint bench match-table architectures determinism \
	calls eval clean

install: $(INSTALLED)  ## install into .venv
dev: $(INSTALLED_DEV)  ## the same, with what tests and checks need

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Says what is going to be done and how long it takes, or what is missing.
plan:
	@command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) was not found: install Python" \
	"3.11, 3.12 or 3.13 (Debian, Ubuntu: apt install python3 python3-venv), or name one with" \
	"make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m distribution.preflight $(VENV) $(MAKECMDGOALS)

# The pip that Python brings may be years old, and takes twice as long.
$(BIN)/python: | plan
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --upgrade pip || \
	echo "note: pip was not updated; the one that Python brings serves, too"

# Newer than the environment if what was built is gone.
build/.here:
	@mkdir -p build
	@touch $@

$(INSTALLED): $(SOURCES) build/.here | plan $(BIN)/python
	@$(QUIETLY) build/install.log "Installing into $(VENV)" -- $(PIP_INSTALL) -e .
	@touch $@

$(INSTALLED_DEV): $(SOURCES) build/.here | plan $(BIN)/python
	@$(QUIETLY) build/install.log "Installing into $(VENV)" -- $(PIP_INSTALL) -e '.[dev]'
	@touch $(INSTALLED) $@

demo: plan $(INSTALLED)  ## compare Hugging Face and this vLLM on the bundled model
	@echo "Comparing (what libraries print goes to build/demo.log)"
	@$(BIN)/python examples/hf_vs_vllm.py 2>build/demo.log || { status=$$?; \
	grep -oE '[A-Za-z]+(Error|Exception): .*' build/demo.log | head -n 1 >&2; echo "The whole output is in build/demo.log." >&2; exit $$status; }

# Two files at a time, but for those that look at latencies. Threads that wait leave their core to
# others. A process that crashes ends the run: with another in its place pytest-xdist waits for ever.
test: plan dev  ## all tests but the longest
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder \
	--max-worker-restart=0 -m "not alone"
	$(BIN)/python -m pytest -m alone

test-fast: plan dev  ## of every promise something, in five minutes
	$(BIN)/python -m pytest -m fast

wheel: plan $(BIN)/python  ## one wheel to carry to other machines, and its hash, in dist/
	@rm -rf build/wheel
	@$(QUIETLY) build/wheel.log "Building the wheel" -- \
	$(BIN)/python -m pip wheel --disable-pip-version-check --no-deps --wheel-dir build/wheel .
	@mkdir -p dist && rm -f dist/vllm-*.whl && mv build/wheel/*.whl dist
	@$(PYTHON) -m distribution.release dist

# Property, seed, beam, speculation, fuzz and exactness tests have their full length then.
test-long: plan dev  ## all tests, the longest too: five hours or more
	HF_COMPAT_TESTS=long $(BIN)/python -m pytest

docs: plan dev  ## the documentation as a site, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

docs-serve: plan dev  ## show the site, and follow edits
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

lint: plan dev  ## ruff and mypy
	$(BIN)/ruff check $(OWN_CODE)
	$(BIN)/ruff format --check $(OWN_CODE)
	$(BIN)/mypy

bench: plan dev  ## all benchmarks
	$(BIN)/python -m benchmarks.sequences_equal
	$(BIN)/python -m benchmarks.speed_by_mode
	$(BIN)/python -m benchmarks.exact_throughput
	$(BIN)/python -m benchmarks.engine_start
	$(BIN)/python -m benchmarks.deterministic_accuracy
	$(BIN)/python -m benchmarks.penalty_kernel
	$(BIN)/python -m benchmarks.portable_operations
	$(BIN)/python -m benchmarks.portable_product
	$(BIN)/python -m benchmarks.receipts
	$(BIN)/python -m benchmarks.sampler_step
	$(BIN)/python -m benchmarks.step_profile
	$(BIN)/python -m benchmarks.attention_kernels

# What was answered before is kept in build/.
match-table: plan dev  ## docs/match-table.md: hours on two cores
	$(BIN)/python -m benchmarks.match_table

architectures: plan dev  ## docs/architectures.md: every type of model, an hour on two cores
	$(BIN)/python -m benchmarks.architectures

determinism: plan dev  ## docs/determinism.md: what changes the bits of answers
	$(BIN)/python -m benchmarks.determinism

calls: plan dev  ## 674 calls of generate(), each answered by Transformers and by this vLLM
	$(BIN)/python -m tests.hf_compat.generate_calls 2>build/calls.log

eval: plan dev  ## lm-evaluation-harness on Transformers and on this vLLM, score by score
	$(BIN)/python -m pip install --disable-pip-version-check -e '.[dev,eval]'
	$(BIN)/python -m benchmarks.lm_eval_parity

clean:  ## remove build/, dist/ and the environment that was made here
	rm -rf build dist
	test ! -e $(INSTALLED) || rm -rf $(VENV)
