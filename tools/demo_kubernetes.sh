#!/usr/bin/env bash
# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# The classic tour of MIG in Kubernetes, on one simulated node and an API in memory. Run it with `make demo-kubernetes`.
# What is said to this program goes on to ansible-playbook: tools/demo_kubernetes.sh -v
set -euo pipefail
cd "$(dirname "$0")/.."

mkdir -p .venv/demo
scratch=$(mktemp -d "$PWD/.venv/demo/XXXXXX") # of its own: two demos may run at once
export PATH=$PWD/.venv/bin:$PATH ANSIBLE_COLLECTIONS_PATH=$PWD/.venv/collections PYTHONPATH=$PWD/.venv/collections
export ANSIBLE_NOCOWS=1 ANSIBLE_DISPLAY_SKIPPED_HOSTS=false ANSIBLE_DISPLAY_OK_HOSTS=false
unset "${!KUBE@}" "${!K8S_@}" http_proxy https_proxy HTTP_PROXY HTTPS_PROXY all_proxy ALL_PROXY
. tools/say.sh

# However this ends, the cluster goes.
cluster=
end() {
    trap "" INT TERM HUP
    if [ -n "$cluster" ]; then kill "$cluster" && wait "$cluster"; fi 2> /dev/null
    rm -rf "$scratch"
}
trap end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

node=$scratch/gpu01
# Tasks that only include others are left out.
brief() {
    awk '/included: / { task = ""; next } /TASK \[/ { task = $0; next } /^$/ { gap = 1; next }
         gap { print ""; gap = 0 } task != "" { print task; task = "" } { print; fflush() }'
}
# Shows a command as an operator types it, and runs it on the simulated node of this demo.
more=("$@")
play() {
    printf '\n%s$ ansible-playbook%s%s\n' "$bold" "$(printf ' %s' "$@" "${more[@]}")" "$plain"
    nvmlsim exec "$node" -- ansible-playbook -i "$scratch/inventory.yml" "$@" "${more[@]}" | brief
}
kubernetes() { python tools/demo_kubectl.py "$scratch/kubeconfig" "$@"; }

nvmlsim create "$node" --gpus 8xa100-sxm4-40gb > "$scratch/created"
cat > "$scratch/inventory.yml" << END
kubernetes_without_operator:
  hosts:
    gpu01:
      ansible_connection: local
      ansible_python_interpreter: "{{ ansible_playbook_python }}"
  vars:
    mig_scheduler: kubernetes
    mig_state_dir: $scratch/state
    kubernetes_node: gpu01
    kubernetes_auth: {kubeconfig: $scratch/kubeconfig}
END
# Of its own process group: Ctrl-C is for us, and we end it.
setsid python -m ansible_collections.gpufleet.mig.tests.kubernetes.serve "$scratch" "gpu01=$node" > "$scratch/log" 2>&1 &
cluster=$!
kubernetes wait-for-api || { cat "$scratch/log" >&2; exit 1; }

say "A node with eight A100-SXM4-40GB, MIG off, in a cluster without NVIDIA's operator; and two applications"
kubernetes create notebooks 12 nvidia.com/gpu
kubernetes create inference 10 nvidia.com/mig-1g.5gb
kubernetes show

say "Device plugin and gpu-feature-discovery: whole GPUs"
play examples/kubernetes/device-plugin.yml -e device_plugin_strategy=mixed
kubernetes show nvidia.com/gpu=8

say "Eight GPUs become 56 slices, which pods ask for by their profile"
play gpufleet.mig.mig -e mig_profile=all-1g.5gb
kubernetes show nvidia.com/mig-1g.5gb=56

say "The same slices under the name of whole GPUs, which notebooks ask for; the product label names the slice"
play examples/kubernetes/device-plugin.yml -e device_plugin_strategy=single
kubernetes show nvidia.com/gpu=56

say "Back to eight whole GPUs"
play gpufleet.mig.mig -e mig_profile=all-disabled
kubernetes show nvidia.com/gpu=8
