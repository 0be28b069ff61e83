# Thin: one environment, one demo, one test command. PYTHON chooses the interpreter of the environment.
PYTHON ?= python3
CORES ?= all
VENV := .venv
PINS := $(VENV)/.ready
READY := $(VENV)/bin/skipbench
PIP := PIP_USER=0 $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check
RUN := PATH="$(CURDIR)/$(VENV)/bin:$$PATH"
NEWER := import sys; sys.exit(sys.version_info < (3, 11) and "error: PYTHON=$(PYTHON) is older than Python 3.11")

.PHONY: help demo test test-fast test-long test-cpus test-kernels test-lowest rehearsal slurm lock chaos

# The tests that compute with torch, by folder (two of the files do not), and two stand-ins for other CPUs:
# none of the vector instructions with two threads (long tests too), and AVX2, for MKL and oneDNN as well.
COMPUTES := tests/contract tests/reference tests/unit/core tests/unit/kernels tests/unit/methods \
	tests/unit/evaluation tests/unit/demo --ignore tests/unit/evaluation/test_sandbox.py \
	--ignore tests/unit/evaluation/test_stock.py
PLAIN := ATEN_CPU_CAPABILITY=default MKL_ENABLE_INSTRUCTIONS=SSE4_2 ONEDNN_MAX_CPU_ISA=SSE41 \
	SKIPBENCH_TEST_THREADS=2 OMP_WAIT_POLICY=PASSIVE
AVX2 := ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=AVX2

KERNELS := tests/unit/kernels $(wildcard tests/unit/methods/test_hero_kernels*.py)

# An environment that was not made whole is made again.
.DELETE_ON_ERROR:

# Prints the comments of the targets.
help:
	@sed -n 's/^\([a-z-]*\):[^#]*## /make \1\t/p' Makefile | expand -t 20

demo: $(READY) ## the demo suite and its page, reports/demo/index.html
	@$(RUN) snakemake --cores $(CORES) --quiet host reason
	@$(RUN) python -m workflows.steps.site
	@echo "The page: reports/demo/index.html"

test: $(READY) ## style, types and tests
	@$(RUN) ruff format --check methods workflows tests
	@$(RUN) ruff check methods workflows tests
	@$(RUN) mypy methods workflows
	@$(RUN) snakefmt --check Snakefile workflows/rules
	@$(RUN) snakemake --lint
	@$(RUN) pytest

test-fast: $(READY) ## the tests that your changed files need
	@$(RUN) python -m tests.fast

test-long: $(READY) ## what test leaves out: runs after a kill, thousands of draws, every row on every family
	@$(RUN) pytest -m long

rehearsal: $(READY) ## the paper's suites against a local hub; CASES="8b_suite or gated" runs those alone
	@$(RUN) pytest -m rehearsal $(if $(CASES),-k "$(CASES)") tests/workflow

slurm: $(READY) ## a small demo on a SLURM cluster of one node; skips where none can start
	@$(RUN) pytest -m slurm -rs tests/workflow/test_slurm.py

test-cpus: $(READY) ## tests that compute, as CPUs with fewer vector instructions
	@$(RUN) $(PLAIN) pytest -m "" $(COMPUTES)
	@$(RUN) $(AVX2) pytest $(COMPUTES)

# Kernels under Triton's interpreter and as compiled for two targets, run by tests/emulator. A CUDA build of torch brings
# a Triton of its own.
test-kernels: $(READY) ## the GPU's kernels, in Triton's interpreter and an emulator
	@$(VENV)/bin/python -c "import triton" 2>/dev/null \
		|| $(PIP) --no-deps triton==3.6.0
	@$(RUN) pytest $(KERNELS)
	@$(RUN) SKIPBENCH_EMULATE=90 pytest $(KERNELS) -k "twin or formulas or programs"
	@$(RUN) SKIPBENCH_EMULATE=80 pytest $(KERNELS) -k "twin and bfloat16"

test-lowest: ## with the lowest versions that pyproject.toml allows, on Python 3.11 or 3.12, in .venv-lowest
	@$(PYTHON) -c '$(NEWER)'
	@$(PYTHON) -m venv $(VENV)-lowest
	@$(PYTHON) -m tests.lowest > $(VENV)-lowest/versions.txt
	@PIP_USER=0 $(VENV)-lowest/bin/python -m pip install --quiet --disable-pip-version-check \
		--requirement $(VENV)-lowest/versions.txt
	@$(VENV)-lowest/bin/python -m pytest tests/contract tests/unit/core tests/unit/evaluation tests/unit/report tests/unit/stats

KILLS ?= 100
chaos: $(READY) ## a small suite under kills and faults, an hour or more; writes reports/chaos.csv
	@$(RUN) python -m tests.chaos --kills $(KILLS) --out reports/chaos.csv

lock: $(VENV)/bin/python ## after a change of pins: installs the newest of what they need, writes requirements.lock
	@$(PIP) --upgrade --upgrade-strategy eager --requirement requirements.txt
	@$(RUN) python -m tests.lock

$(VENV)/bin/python:
	@$(PYTHON) -c '$(NEWER)'
	@$(PYTHON) -m venv $(VENV)

# The versions of the lock without its hashes, which are those of one platform's files. The environment
# counts as ready only when every pin is installed; an interrupted install starts over.
$(PINS): requirements.txt requirements.lock | $(VENV)/bin/python
	@echo "Packages are installed into $(VENV): about 2 GB, some minutes"
	@sed 's/ --hash=.*//' requirements.lock > $(VENV)/versions.txt
	@$(PIP) --constraint $(VENV)/versions.txt --requirement requirements.txt
	@touch $@

# The command skipbench runs the files of this checkout; setuptools comes with torch.
$(READY): $(PINS) pyproject.toml
	@$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@
