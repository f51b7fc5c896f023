#!/usr/bin/env bash
# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# The tour on real nodes: three of them boot, are divided over ssh, and are gone afterwards. Run it with `make demo-fleet`.
# What is said to this program goes on to ansible-playbook: tools/demo_fleet.sh -e mig_profile=all-1g.10gb
set -euo pipefail
cd "$(dirname "$0")/.."

fleet=demo-$$ # of its own: two demos may run at once
export PATH=$PWD/.venv/bin:$PATH ANSIBLE_COLLECTIONS_PATH=$PWD/.venv/collections ANSIBLE_NOCOWS=1 NODES_FLEET=$fleet
export ANSIBLE_DISPLAY_SKIPPED_HOSTS=false
. tools/say.sh

nodes() { python -m tests.nodes "$@"; }
mig() { ansible-playbook playbooks/mig.yml -i extensions/molecule/inventory/nodes.sh -e mig_profile=all-balanced \
    -e mig_evict=clients -e mig_allow_reset=true -e mig_serial=3 "$@"; }
# What runs on a node, what it sees, and the simulator's own drawing of its GPUs.
show() {
    printf '\n%s: system %s, %s MIG devices, running: %s\n' "$1" "$(nodes run "$fleet" "$1" -- systemctl is-system-running)" \
        "$(nodes run "$fleet" "$1" -- nvidia-smi -L | grep -c '^  MIG' || true)" \
        "$(nodes run "$fleet" "$1" -- systemctl list-units --state=running --no-legend --plain 'nvidia-*' 'dcgm*' |
            sed 's/\.service .*//' | paste -sd ' ')"
    nvmlsim show ".venv/nodes/run/$fleet/$1/sim/gpus" | grep -E '^(GPU|    \|)'
}

if ! reason=$(nodes why-not); then
    echo "No node can be booted here: $reason. See docs/testing-on-nodes.md; 'make demo' needs none." >&2
    exit 1
fi

# However this ends, the nodes go: a second Ctrl-C does not keep them either.
trap 'trap "" INT TERM HUP; nodes down "$fleet"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

say "Three nodes boot: A100, H100, and an A100 beside a T4, which cannot do MIG"
nodes up "$fleet" --node a100=8xa100-sxm4-40gb,fabric_manager=on --node h100=4xh100-sxm5-80gb,driver=570 \
    --node mixed=1xa100-pcie-40gb,1xtesla-t4
for node in a100 h100 mixed; do
    nodes run "$fleet" "$node" -- systemctl start nvidia-persistenced nvidia-dcgm dcgm-exporter
done
nodes run "$fleet" a100 -- systemctl start nvidia-fabricmanager # this one has NVSwitches
for node in a100 h100 mixed; do show "$node"; done

say "Divided: what is in the way stops, the GPUs change, what ran runs again"
mig "$@"

say "The nodes now"
for node in a100 h100 mixed; do show "$node"; done

say "Once more: the nodes are as wanted, nothing is stopped and nothing is written"
nodes remember "$fleet"
mig "$@"
nodes unchanged "$fleet"
