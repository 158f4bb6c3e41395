# Targets of the whole checkout: local cluster, tests, benchmarks. The Makefile takes them in where they are; a project that was made
# from the template has none of their rooms (docs/environments.md).
STACK ?= dev

.PHONY: up down clean status logs env test test-unit test-cluster golden bench bench-check

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

bench: $(READY) ## measure on the local cluster against a bare Pulumi program; writes bench/results.md
	@$(RUN) -m bench.cost

bench-check: $(READY) ## measure what checking stack files costs; writes bench/check.md
	@$(RUN) -m bench.check

golden: $(READY) ## write what is rendered now as the golden files
	@$(RUN) -m pytest tests/render --update-golden --quiet
