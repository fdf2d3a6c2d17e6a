# Two commands matter: `make run` and `make test`. `make help` lists the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DATA ?= data/sample
OUT ?= runs/first
RECIPE ?= cpu
# uv leaves modules uncompiled: the first process that imports torch writes what saves all others seconds.
unexport PYTHONDONTWRITEBYTECODE
export OMP_WAIT_POLICY ?= PASSIVE

.DEFAULT_GOAL := help
.PHONY: help setup setup-collect run test test-cpus coverage docs fuzz test-slow lint platforms wheel kaggle test-kaggle bench kernels rehearsal gpu accuracy sample clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# uv installs several times faster than pip; what pip was told by its environment holds for both, and
# where uv cannot be had, pip does it.
UV_VERSION := 0.13.9
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
ifdef PIP_INDEX_URL
export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
endif
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
define install
	$(BIN)/uv pip install --quiet --python $(BIN)/python -r $(1) -c constraints.txt || \
		{ echo 'note: uv failed; pip installs $(1) instead, and ignores UV_TORCH_BACKEND' >&2; $(PIP) -r $(1) -c constraints.txt; }
endef

$(VENV)/.runtime: requirements.txt constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 …")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test -x $(BIN)/uv || $(PIP) uv==$(UV_VERSION) || true
	$(call install,requirements.txt)
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps -e . || $(PIP) --no-deps -e . || \
		echo 'note: fast-or-slow is not installed; use $(BIN)/python -m pipeline'
	@touch $@

$(VENV)/.collect: $(VENV)/.runtime requirements-collect.txt
	$(call install,requirements-collect.txt)
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime requirements-dev.txt requirements-collect.txt requirements-ray.txt requirements-trackers.txt
	$(call install,requirements-dev.txt)
	@touch $@

$(VENV)/.docs: $(VENV)/.dev requirements-docs.txt
	$(call install,requirements-docs.txt)
	@touch $@

$(VENV)/.fuzz: $(VENV)/.dev requirements-fuzz.txt
	$(call install,requirements-fuzz.txt)
	@touch $@

$(VENV)/.notebook: $(VENV)/.dev requirements-notebook.txt
	$(call install,requirements-notebook.txt)
	@touch $@

setup: $(VENV)/.runtime  ## make .venv and install requirements.txt

setup-collect: $(VENV)/.collect  ## also install JAX, to measure programs and to read HLO text and StableHLO

run: setup  ## the whole pipeline: make run DATA=data/sample RECIPE=cpu OUT=runs/first
	$(BIN)/python -m pipeline run --data $(DATA) --recipe $(RECIPE) --out $(OUT) --resume

test: $(VENV)/.dev  ## the tests (a few minutes on two cores)
	$(BIN)/python -m pytest -n 2 --dist loadfile

coverage: $(VENV)/.dev  ## the same with the share of lines that they run; fails below 93 %
	$(BIN)/python -m pytest -n 2 --dist loadfile $(addprefix --cov=,common data features models ensembles submissions kernels autotune pipeline) --cov-report=term:skip-covered --cov-fail-under=93

docs: $(VENV)/.docs  ## the pages of docs/ as a site, into site/
	$(BIN)/mkdocs build --strict

FUZZ_DOORS := npz hlo text submission recipe measured
fuzz: $(VENV)/.fuzz  ## ten minutes of coverage-guided fuzzing of each door for files from outside
	for door in $(FUZZ_DOORS); do $(BIN)/python -m tests.drills.fuzz $$door --minutes 10 || exit 1; done

test-slow: $(VENV)/.fuzz $(VENV)/.notebook  ## the tests that take longer
	$(BIN)/python -m pytest -m slow --timeout 3600

# A CPU's instructions, as the libraries that make code for it are asked to see them.
CPUS := sse avx2 avx512
CPU_sse := XLA_FLAGS=--xla_cpu_max_isa=SSE4_2 ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 OPENBLAS_CORETYPE=Nehalem NPY_DISABLE_CPU_FEATURES="X86_V3 X86_V4 AVX512_ICL AVX512_SPR"
CPU_avx2 := XLA_FLAGS=--xla_cpu_max_isa=AVX2 ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 OPENBLAS_CORETYPE=Haswell NPY_DISABLE_CPU_FEATURES="X86_V4 AVX512_ICL AVX512_SPR"
CPU_avx512 := XLA_FLAGS=--xla_cpu_max_isa=AVX512 ATEN_CPU_CAPABILITY=avx512 ONEDNN_MAX_CPU_ISA=AVX512_CORE OPENBLAS_CORETYPE=SkylakeX NPY_DISABLE_CPU_FEATURES="AVX512_SPR"

test-cpus: $(VENV)/.dev  ## the tests as on three older x86-64 processors
	$(foreach cpu,$(CPUS),$(CPU_$(cpu)) $(BIN)/python -m pytest -n 2 --dist loadfile $(TESTS) &&) true

lint: $(VENV)/.dev  ## ruff, formatting, types, imports, sizes, plain sentences and spelling
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m tests.support.budget
	$(BIN)/python -m tests.support.prose
	$(BIN)/codespell $$(git ls-files '*.py' '*.md' '*.toml' '*.j2' Makefile)

# Local wheels (PIP_FIND_LINKS) can hide a conflict that all other machines have.
PYTHONS := 3.11.0 3.12 3.13 3.14
SYSTEMS := x86_64-manylinux_2_28 aarch64-manylinux_2_28 aarch64-apple-darwin x86_64-pc-windows-msvc
platforms: $(VENV)/.runtime  ## all requirements have wheels in the package index, on every system
	@printf '%s\n' $(foreach python,$(PYTHONS),$(foreach system,$(SYSTEMS),$(python)/$(system))) | \
	env -u PIP_FIND_LINKS -u UV_FIND_LINKS MACOSX_DEPLOYMENT_TARGET=14.0 xargs -P 8 -n 1 sh -c '\
		log=$$($(BIN)/uv pip compile --quiet --no-config --no-build --python-version $${1%/*} \
		--python-platform $${1#*/} --constraint constraints.txt $(filter-out requirements-kaggle.txt,$(wildcard requirements*.txt)) 2>&1) || \
		{ echo "Python $$1: $$log" >&2; exit 1; }' sh
	env -u PIP_FIND_LINKS -u UV_FIND_LINKS $(BIN)/uv pip compile --quiet --no-config --no-build --python-version 3.12 \
		--python-platform x86_64-manylinux_2_28 requirements-kaggle.txt > /dev/null

# The packages of Kaggle's image, in an environment next to that of the project. Its torch is 2.10.0; the one of
# requirements.txt is on this machine already.
KAGGLE := $(VENV)/kaggle
KAGGLE_TORCH ?= $(shell grep '^torch==' requirements.txt)
KAGGLE_OUT ?= runs/kaggle-image
$(KAGGLE)/.done: $(VENV)/.runtime requirements-kaggle.txt
	rm -rf $(KAGGLE) && $(BIN)/python -m venv $(KAGGLE)
	$(BIN)/uv pip install --quiet --python $(KAGGLE)/bin/python -r requirements-kaggle.txt $(KAGGLE_TORCH) || \
		$(KAGGLE)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-kaggle.txt $(KAGGLE_TORCH)
	@touch $@

WHEEL := runs/wheel
wheel: setup  ## build and install the wheel, and run the recipe smoke in an empty folder
	rm -rf $(WHEEL) && $(BIN)/python -m venv $(WHEEL)/venv && mkdir $(WHEEL)/empty
	$(BIN)/uv build --out-dir $(WHEEL)
	$(BIN)/uv pip install --quiet --python $(WHEEL)/venv/bin/python $(WHEEL)/*.whl
	cd $(WHEEL)/empty && XDG_CACHE_HOME=../cache ../venv/bin/fast-or-slow run --recipe smoke

kaggle: setup  ## the recipe smoke with the packages of Kaggle's image (Python 3.11 and 3.12 have wheels of them)
	@if $(BIN)/python -c 'import sys; sys.exit(sys.version_info >= (3, 13))'; then $(MAKE) $(KAGGLE)/.done && \
		$(KAGGLE)/bin/python -m kernels.packages && rm -rf $(KAGGLE_OUT) && \
		$(KAGGLE)/bin/python -m pipeline run --recipe smoke --data data/sample --out $(KAGGLE_OUT); \
	else echo "note: skipped, because the image's numpy has no wheels for this Python"; fi

test-kaggle: kaggle  ## the tests of models and built kernels with the packages of Kaggle's image
	$(KAGGLE)/bin/python -m pytest tests/models tests/kernels/test_script.py -m 'not gpu'

bench: setup  ## speed and memory: writes docs/results/speed.md
	$(BIN)/python -m benchmarks.speed

GPU_PYTHON ?= 3.12
REHEARSAL ?= runs/rehearsal
OPTIONS ?=
OVERRIDES ?=
rehearsal: setup  ## the leaderboard recipe on synthetic files, through kernels: writes docs/results/rehearsal.md
	$(BIN)/python -m benchmarks.rehearsal --out $(REHEARSAL) $(OVERRIDES:%=--set '%') $(OPTIONS)

kernels: $(VENV)/.dev  ## compile the GPU kernels for four cards, without a GPU: writes docs/results/kernels.md
	$(BIN)/python -m benchmarks.kernels

gpu: setup  ## time the networks on a CUDA GPU: writes docs/results/gpu.md; DRY=1: tiny, on the CPU
	$(if $(DRY),TRITON_INTERPRET=1) $(BIN)/python -m benchmarks.gpu $(if $(DRY),--dry)

# What a machine with CUDA, PyTorch and NumPy lacks to run benchmarks.gpu.
gpu-wheels: setup  ## fetch the few wheels that benchmarks.gpu needs beside PyTorch, into runs/gpu-wheels: GPU_PYTHON=3.12
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --only-binary :all: --python-version $(GPU_PYTHON) \
		--platform manylinux2014_x86_64 --platform manylinux_2_28_x86_64 --dest runs/gpu-wheels \
		$$(grep -E '^(pydantic|tomli_w|zlib-ng)==' requirements.txt)

accuracy: setup  ## train models against each other, resumable: writes docs/results/accuracy.md
	$(BIN)/python -m benchmarks.accuracy --out runs/accuracy
	$(BIN)/python -m benchmarks.accuracy --out runs/accuracy --report

results: $(VENV)/.dev  ## write each page of docs/results whose code changed since; hours, resumable
	$(BIN)/python -m benchmarks.results

sample: setup-collect  ## measure the layouts of the embedded sample anew on this machine, into data/raw/sample
	$(BIN)/python -m pipeline collect --plan sample --remeasure --max-minutes 280 --out data/raw/sample

clean:  ## remove what runs and caches left (not data/raw)
	rm -rf runs data/store .pytest_cache .mypy_cache .ruff_cache .hypothesis
