# The two commands of the README are `make demo` and `make test`; each does its own set-up.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
PYTEST = $(BIN)/pytest -n 2 --dist loadfile
DOCTEST = $(BIN)/python -m doctest README.md docs/distributed.md -o NORMALIZE_WHITESPACE -o ELLIPSIS
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: demo test test-all lint compare bench audit clean

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
	$(BIN)/python -m dpmd_fast.demo --output demo

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(PYTEST) -m "not slow"
	NUMBA_DISABLE_JIT=1 $(PYTEST) -m "kernels and not slow"
	$(DOCTEST)

test-all: lint
	$(PYTEST)
	NUMBA_DISABLE_JIT=1 $(PYTEST) -m kernels
	$(DOCTEST)

audit: $(VENV)/.installed-test
	$(BIN)/python -m dpmd_fast.privacy.audit

compare: $(VENV)/.installed-test
	$(BIN)/python benchmarks/compare.py

bench: $(VENV)/.installed-bench
	$(BIN)/asv machine --yes
	$(BIN)/asv run --quick --python=same

clean:
	rm -rf $(VENV) build dist *.egg-info .numba_cache .pytest_cache .mypy_cache .ruff_cache demo
