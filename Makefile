# The two commands of the README are `make demo` and `make test`; each does its own set-up.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
# Python compiles the modules that it imports, the first time: pip would compile all of them, for half of its time
INSTALL = $(BIN)/python -m pip install --quiet --no-compile --editable
PYTEST = $(BIN)/pytest -n 2 --dist loadfile --durations 40 --durations-min 4
DOCTEST = $(BIN)/python -m doctest README.md -o NORMALIZE_WHITESPACE -o ELLIPSIS
# the site; GALLERY=0 runs no script of examples/ and shows the pictures of the last build, if there are any
GALLERY ?= 1
SPHINX = DPMD_DOCS_GALLERY=$(GALLERY) $(BIN)/python -m sphinx -b html -W --keep-going -j auto -q docs docs/_build/html
# the folders of all tests that are marked as those of kernels: only these are looked through without the compiler
KERNELS = tests/baselines tests/kernels tests/privacy
INPUTS ?= 100000
# results are named by the kind of processor that they were measured on
KIND = $$($(BIN)/python benchmarks/markdown.py)
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: demo test test-all test-seeds test-targets lint docs figures coverage compare bench bench-full scaling limits audit fuzz serve-bench clean

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) .
	touch $@

$(VENV)/.installed-test: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) '.[test]'
	touch $(VENV)/.installed $@

$(VENV)/.installed-bench: $(VENV)/.installed-test
	$(INSTALL) '.[test,bench]'
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
	NUMBA_DISABLE_JIT=1 $(PYTEST) -m "kernels and not slow" $(KERNELS)
	$(DOCTEST)
	$(MAKE) docs GALLERY=0

test-all: lint
	$(BIN)/dpmd-fast warmup
	$(PYTEST)
	NUMBA_DISABLE_JIT=1 $(PYTEST) -m kernels $(KERNELS)
	$(DOCTEST)
	$(MAKE) docs

# docs/_build/html/index.html; warnings are errors
docs: $(VENV)/.installed-test
	$(SPHINX)

# copies the numbers that commands wrote into README.md and docs
figures: $(VENV)/.installed-test
	$(BIN)/python benchmarks/figures.py

# other random numbers in all tests: what passes by a coincidence of its seed fails in one of them;
# the files in tests/ itself are about processes, files, documents, and draw nothing that they judge
test-seeds: $(VENV)/.installed-test
	$(BIN)/dpmd-fast warmup
	for shift in 1 2 3; do DPMD_FAST_TEST_SEED=$$shift $(PYTEST) -m "not slow" tests/*/ || exit 1; done

# the tests as on other machines: other kernels of OpenBLAS, NumPy without its own loops for newer processors,
# and Numba's kernels for any x86_64. All settings are tried: those that failed are named in the end. SkylakeX
# needs a processor with AVX-512
SETTINGS = OPENBLAS_CORETYPE=Haswell OPENBLAS_CORETYPE=SkylakeX OPENBLAS_CORETYPE=Zen \
	NPY_DISABLE_CPU_FEATURES=X86_V3,X86_V4,AVX512_ICL,AVX512_SPR NUMBA_CPU_NAME=generic
test-targets: $(VENV)/.installed-test
	failed=; for setting in $(SETTINGS); do echo "== $$setting"; export "$$setting"; \
	  $(BIN)/dpmd-fast warmup && $(PYTEST) -m "not slow" \
	  && NUMBA_DISABLE_JIT=1 $(PYTEST) -m "kernels and not slow" $(KERNELS) && $(DOCTEST) \
	  || failed="$$failed $$setting"; unset "$${setting%%=*}"; done; \
	if [ -n "$$failed" ]; then echo "failed:$$failed"; exit 1; fi

coverage: $(VENV)/.installed-test
	$(PYTEST) -m "not slow" --cov --cov-report=
	NUMBA_DISABLE_JIT=1 $(PYTEST) -m "kernels and not slow" $(KERNELS) --cov --cov-append

# the attacks take ten minutes, the replay five: make audit ONLY=replay PAIRS=1000
audit: $(VENV)/.installed-test
	$(BIN)/python -m dpmd_fast.lab.audit $(if $(ONLY),--only $(ONLY)) $(if $(PAIRS),--pairs $(PAIRS)) $(if $(ONLY)$(PAIRS),,> benchmarks/results/audit.md; status=$$?; cat benchmarks/results/audit.md; exit $$status)

fuzz: $(VENV)/.installed-test
	DPMD_FAST_FUZZ=$(INPUTS) DPMD_FAST_FUZZ_SEED=$(SEED) $(PYTEST) tests/fuzz

compare: $(VENV)/.installed-bench
	$(BIN)/python benchmarks/compare.py --output benchmarks/results/compare-$(KIND).md
	$(BIN)/python benchmarks/latency.py --output benchmarks/results/latency-$(KIND).md
	$(BIN)/python benchmarks/transform.py --output benchmarks/results/transform-$(KIND).md
	$(BIN)/python benchmarks/transform_file.py --rows 2000000 --output benchmarks/results/transform_file-$(KIND).md
	$(BIN)/python benchmarks/cold_start.py --output benchmarks/results/cold-start-$(KIND).md
	$(BIN)/python benchmarks/mixture.py --only rounds --only transform --output benchmarks/results/mixture-$(KIND).md
	$(BIN)/python benchmarks/figures.py

# asv takes the code as it is; results go to .asv, tables to benchmarks/results
BENCH = $(BIN)/asv run --python=same --launch-method forkserver --show-stderr \
	--set-commit-hash "$$(git rev-parse HEAD)"

bench bench-full: $(VENV)/.installed-bench
	$(BIN)/asv machine --yes
	DPMD_BENCH_PROFILE=$(if $(findstring full,$@),full,quick) $(BENCH)
	DPMD_BENCH_PROFILE=$(if $(findstring full,$@),full,quick) $(BIN)/python benchmarks/asv_tables.py
	$(BIN)/python benchmarks/figures.py

scaling: $(VENV)/.installed-bench
	$(BIN)/python benchmarks/scaling.py --output benchmarks/results/scaling-$(KIND).md
	$(BIN)/python benchmarks/figures.py

limits: $(VENV)/.installed-bench
	$(BIN)/python benchmarks/limits.py --output benchmarks/results/limits-$(KIND).md
	$(BIN)/python benchmarks/figures.py

# 25 minutes: throughput, latency, 100,000 requests, faults, 10 minutes of mixed load
serve-bench: $(VENV)/.installed-bench
	$(BIN)/python benchmarks/serve.py --output benchmarks/results/serve-$(KIND).md
	$(BIN)/python benchmarks/figures.py

clean:
	rm -rf $(VENV) build dist *.egg-info .numba_cache .pytest_cache .mypy_cache .ruff_cache .coverage demo docs/_build docs/api/made docs/gallery/made
