# Thin: one environment, one demo, one test command. PYTHON chooses the interpreter of the environment.
PYTHON ?= python3
CORES ?= all
VENV := .venv
READY := $(VENV)/.ready
RUN := PATH="$(CURDIR)/$(VENV)/bin:$$PATH"

.PHONY: demo test

demo: $(READY)
	@$(RUN) flock .demo.lock sh -c 'snakemake --unlock --quiet all && snakemake --cores $(CORES) --quiet rules host'
	@echo "The page: reports/demo/index.html"

test: $(READY)
	@$(RUN) ruff format --check methods workflows tests
	@$(RUN) ruff check methods workflows tests
	@$(RUN) mypy methods workflows
	@$(RUN) snakefmt --check Snakefile workflows/rules
	@$(RUN) snakemake --lint
	@$(RUN) pytest

# The environment counts as ready only when every pin is installed; an interrupted install starts over.
$(READY): requirements.txt
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@
