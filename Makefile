# Every target makes what it needs: the virtual environment, and for the local cluster the toolchain.
PYTHON ?= python3
TEMPLATE ?= .local/template
# what a program needs: nothing else is copied, whatever lies beside it
PROGRAM := .gitignore Makefile Pulumi.yaml README.md __main__.py pd pyproject.toml requirements.in requirements.lock requirements.txt \
	catalog cli components convergence docs impact importer live models preflight render rules schema
VENV := .venv
RUN := $(VENV)/bin/python
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help check format lock docs template

include $(wildcard tools/targets.mk)

help: ## what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { gsub(/\$$\$$/, "$$", $$2); printf "  make %-14s %s\n", $$1, $$2 }' $(filter-out Makefile,$(MAKEFILE_LIST)) Makefile

check: $(READY) ## lint, format and types
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy .

format: $(READY) ## format
	@$(VENV)/bin/ruff check --fix .
	@$(VENV)/bin/ruff format .

docs: $(READY) ## write what is generated from the code: the JSON Schemas, the pages of the rules
	@$(RUN) -m rules.schema schema
	@$(RUN) -m rules.page docs

template: ## write the program without stacks, tests and local cluster to TEMPLATE, for `pulumi new`
	@rm -rf .local/template && mkdir -p $(dir $(TEMPLATE)) && mkdir $(TEMPLATE)
	@cp -R $(PROGRAM) $(TEMPLATE)
	@find $(TEMPLATE) -name __pycache__ -prune -exec rm -r {} +
	@echo 'in an empty directory: pulumi new $(abspath $(TEMPLATE))'

lock: $(READY) ## pin all dependencies anew from requirements.in
	@$(RUN) -m pip install --quiet uv
	@$(VENV)/bin/uv pip compile --universal --generate-hashes --no-annotate --no-header --python-version 3.11 \
		--quiet requirements.in --output-file requirements.lock

$(READY): requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo 'error: Python 3.11 or newer is needed as $(PYTHON); or say which: make PYTHON=python3.12 ...' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo 'error: $(PYTHON) has no venv module (Debian: apt-get install python3-venv)' >&2; exit 1; }
	@echo 'making the virtual environment $(VENV)' >&2
	@$(PYTHON) -m venv --clear $(VENV)
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements.lock
	@touch $@
