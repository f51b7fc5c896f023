# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

.DEFAULT_GOAL := help
.PHONY: help demo demo-kubernetes demo-fleet setup check test counts torture test-kubernetes-fleet bench bench-fleet build format clean

# The first interpreter that really runs, of those that ansible-core 2.19 supports. Choose another one with PYTHON=...
PYTHON = $(shell tools/find_python.sh 3.11 3.12 3.13)

help: ## what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-21s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ready ## repartition a simulated DGX A100: check, run, run again
	@tools/demo.sh

demo-kubernetes: need-python ## the classic of MIG in Kubernetes: 8 GPUs, 56 slices by profile, 56 as GPUs, 8 again; and which pods fit
	@$(PYTHON) tools/setup.py --kubernetes
	@tools/demo_kubernetes.sh

demo-fleet: need-python ## the same on three nodes that boot, as root: an A100, an H100, and one with a GPU without MIG
	@$(PYTHON) tools/setup.py --nodes
	@tools/demo_fleet.sh

setup: need-python ## make everything that demo and tests need, below .venv/
	@$(PYTHON) tools/setup.py --all

check: ready ## the fast tests, in under a minute: formats, types, headers, unit tests
	@.venv/bin/python tools/run_tests.py --fast

test: setup ## all tests; only some of them with STEPS="unit lint"
	@.venv/bin/python tools/run_tests.py $(STEPS)

counts: setup ## all tests, then remember how many there are: from then on, fewer are a failure
	@.venv/bin/python tools/run_tests.py --write-counts $(STEPS)

NODES = 8
test-kubernetes-fleet: setup ## rollouts over NODES=8 nodes of Kubernetes that boot, as root; make test has three
	@KUBERNETES_NODES=$(NODES) .venv/bin/python -m tests.nodes scenario kubernetes-fleet

SEED = 1
COUNT = 10000
torture: ready ## random accidents, COUNT=10000 of them, drawn from SEED=1: is ever a layout lost?
	@.venv/bin/python tests/torture/torture.py --seed $(SEED) --count $(COUNT)

bench: ready ## the numbers: calls, writes, milliseconds, bytes; also in .venv/bench.json
	@.venv/bin/python tests/benchmark/bench.py

bench-fleet: ready ## what 10, 100 and 1,000 hosts cost their controller, beside ping; also in .venv/bench-fleet.json; an hour
	@.venv/bin/python tests/benchmark/fleet.py

build: ready ## the collection as an archive that ansible-galaxy installs, in .venv/dist/
	@.venv/bin/ansible-galaxy collection build --force --output-path .venv/dist .

format: ready ## bring the Python files into shape
	@.venv/bin/ruff check --fix --quiet . ; .venv/bin/ruff format .

clean: ## throw away everything that was made
	rm -rf .venv

.PHONY: ready need-python
ready: need-python
	@$(PYTHON) tools/setup.py

need-python:
	@test -n "$(PYTHON)" || { echo "This needs a Python 3.11, 3.12 or 3.13 that can make virtual environments (module venv)."; exit 1; }
