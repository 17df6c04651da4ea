# The two commands of the README are `make demo` and `make test`; each does its own set-up.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
PYTEST = $(BIN)/pytest -n 2 --dist loadfile --durations 40 --durations-min 4
DOCTEST = $(BIN)/python -m doctest README.md docs/distributed.md docs/mixture.md docs/preprocessing.md -o NORMALIZE_WHITESPACE -o ELLIPSIS
INPUTS ?= 100000
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: demo test test-all lint coverage compare bench bench-full scaling limits audit fuzz serve-bench clean

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@

$(VENV)/.installed-bench: $(VENV)/.installed-test
	$(BIN)/python -m pip install --quiet --editable '.[test,bench]'
	touch $@

demo: $(VENV)/.installed
	$(BIN)/python -m dpmd_fast.lab.demo --output demo

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/dpmd-fast warmup
	$(PYTEST) -m "not slow"
	NUMBA_DISABLE_JIT=1 $(PYTEST) -m "kernels and not slow"
	$(DOCTEST)

test-all: lint
	$(BIN)/dpmd-fast warmup
	$(PYTEST)
	NUMBA_DISABLE_JIT=1 $(PYTEST) -m kernels
	$(DOCTEST)

coverage: $(VENV)/.installed-test
	$(PYTEST) -m "not slow" --cov --cov-report=
	NUMBA_DISABLE_JIT=1 $(PYTEST) -m "kernels and not slow" --cov --cov-append

audit: $(VENV)/.installed-test
	$(BIN)/python -m dpmd_fast.lab.audit

fuzz: $(VENV)/.installed-test
	DPMD_FAST_FUZZ=$(INPUTS) DPMD_FAST_FUZZ_SEED=$(SEED) $(PYTEST) tests/fuzz

compare: $(VENV)/.installed-bench
	$(BIN)/python benchmarks/compare.py --output benchmarks/results/compare.md
	$(BIN)/python benchmarks/latency.py --output benchmarks/results/latency.md
	$(BIN)/python benchmarks/transform.py --output benchmarks/results/transform.md
	$(BIN)/python benchmarks/transform_file.py --rows 2000000 --output benchmarks/results/transform_file.md
	$(BIN)/python benchmarks/cold_start.py --output benchmarks/results/cold-start.md
	$(BIN)/python benchmarks/page.py

# asv takes the code as it is; results go to .asv, tables to benchmarks/results
BENCH = $(BIN)/asv run --python=same --launch-method forkserver --show-stderr \
	--set-commit-hash "$$(git rev-parse HEAD)"

bench bench-full: $(VENV)/.installed-bench
	$(BIN)/asv machine --yes
	DPMD_BENCH_PROFILE=$(if $(findstring full,$@),full,quick) $(BENCH)
	DPMD_BENCH_PROFILE=$(if $(findstring full,$@),full,quick) $(BIN)/python benchmarks/asv_tables.py
	$(BIN)/python benchmarks/page.py

scaling: $(VENV)/.installed-bench
	$(BIN)/python benchmarks/scaling.py --output benchmarks/results/scaling.md
	$(BIN)/python benchmarks/page.py

limits: $(VENV)/.installed-bench
	$(BIN)/python benchmarks/limits.py --output benchmarks/results/limits.md
	$(BIN)/python benchmarks/page.py

# 25 minutes: throughput, latency, 100,000 requests, faults, 10 minutes of mixed load
serve-bench: $(VENV)/.installed-bench
	$(BIN)/python benchmarks/serve.py --output benchmarks/results/serve.md

clean:
	rm -rf $(VENV) build dist *.egg-info .numba_cache .pytest_cache .mypy_cache .ruff_cache .coverage demo
