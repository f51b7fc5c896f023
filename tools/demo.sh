#!/usr/bin/env bash
# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# The tour: one command repartitions a simulated DGX A100. Run it with `make demo`.
set -euo pipefail
cd "$(dirname "$0")/.."

bin=$PWD/.venv/bin
mkdir -p .venv/demo
scratch=$(mktemp -d "$PWD/.venv/demo/XXXXXX") # of its own: two demos may run at once
trap 'rm -rf "$scratch"' EXIT
node=$scratch/dgx-a100
export PATH=$bin:$PATH ANSIBLE_COLLECTIONS_PATH=$PWD/.venv/collections ANSIBLE_NOCOWS=1
. tools/say.sh

# As data: a path may have blanks and quotes.
state=$(python -c 'import json, sys; print(json.dumps({"mig_state_dir": sys.argv[1]}))' "$scratch/state")
mig() { nvmlsim exec "$node" -- ansible-playbook playbooks/mig.yml -i examples/simulated/inventory.yml \
    -e "$state" -e mig_profile=all-1g.5gb "$@"; }

# The simulator's own drawing, without the line for each instance.
pictures() { nvmlsim show "$node" | grep -E '^(GPU|    \|)'; }

say "A DGX A100: eight A100-SXM4-40GB, simulated, MIG off"
nvmlsim create "$node" --gpus 8xa100-sxm4-40gb
pictures

say "The plan (ansible-playbook playbooks/mig.yml -e mig_profile=all-1g.5gb --check --diff): nothing is touched"
mig --check --diff

say "For real"
mig
pictures

# DEMO_INTERFERE=1 destroys an instance behind the back of Ansible, to show that the last check can fail.
if [ -n "${DEMO_INTERFERE:-}" ]; then
    say "Somebody destroys an instance by hand"
    nvmlsim exec "$node" -- python tools/demo_interfere.py
fi

say "Once more: the node is as wanted"
nvmlsim calls "$node" --reset > /dev/null
mig

python tools/demo_verdict.py "$node"
