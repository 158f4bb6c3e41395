# Every target makes what it needs: the virtual environment, and for the local cluster the toolchain.
PYTHON ?= python3
STACK ?= dev
TEMPLATE ?= .local/template
NOT_OF_THE_PROGRAM := Pulumi.%.yaml bench environments examples local tests tools
VENV := .venv
RUN := $(VENV)/bin/python
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help up down clean status logs env test test-unit test-cluster check format lock golden docs template bench bench-check

help: ## what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { gsub(/\$$\$$/, "$$", $$2); printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

up: $(READY) ## local cluster, `pulumi up` of STACK (dev), an answered chat request; PODS=simulated for pods without engines
	@$(RUN) -m local up --stack $(STACK) $(if $(PODS),--pods $(PODS))

down: $(READY) ## stop the local cluster; the next `make up` goes on from there
	@$(RUN) -m local down

clean: $(READY) ## stop the local cluster and forget its objects, Pulumi state and logs
	@$(RUN) -m local clean

status: $(READY) ## what runs
	@$(RUN) -m local status

logs: $(READY) ## log of a pod, or of a program of the cluster: make logs POD=deepseekv4-pd-0-prefill-0-0
	@$(RUN) -m local logs $(if $(POD),$(POD),$(error say which pod: make logs POD=NAME, names are in `make status`))

env: $(READY) ## exports for plain pulumi and kubectl: eval "$$(make -s env)"
	@$(RUN) -m local env

test: check test-unit test-cluster ## all tests

test-unit: $(READY) ## tests without a cluster, in seconds
	@$(RUN) -m pytest tests --ignore=tests/cluster --numprocesses=auto

test-cluster: $(READY) ## tests on a real local cluster of their own
	@$(RUN) -m pytest tests/cluster --numprocesses=3 --dist=loadfile

check: $(READY) ## lint, format and types
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy .

format: $(READY) ## format
	@$(VENV)/bin/ruff check --fix .
	@$(VENV)/bin/ruff format .

bench: $(READY) ## measure on the local cluster against a bare Pulumi program; writes bench/results.md
	@$(RUN) -m bench.cost

bench-check: $(READY) ## measure what checking stack files costs; writes bench/check.md
	@$(RUN) -m bench.check

golden: $(READY) ## write what is rendered now as the golden files
	@$(RUN) -m pytest tests/render --update-golden --quiet

docs: $(READY) ## write what is generated from the code: the JSON Schemas, the pages of the rules
	@$(RUN) -m rules.schema schema
	@$(RUN) -m rules.page docs

template: ## write the program without stacks, tests and local cluster to TEMPLATE, for `pulumi new`
	@rm -rf .local/template && mkdir -p $(dir $(TEMPLATE)) && mkdir $(TEMPLATE)
	@cp -R $(filter-out $(NOT_OF_THE_PROGRAM),$(wildcard *)) .gitignore $(TEMPLATE)
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
