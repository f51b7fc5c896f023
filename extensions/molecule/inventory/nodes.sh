#!/usr/bin/env bash
# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Inventory of the fleet that is named like the scenario. By hand: NODES_FLEET=NAME ansible -i THIS_FILE ...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
exec .venv/bin/python -m tests.nodes inventory "${NODES_FLEET:-${MOLECULE_SCENARIO_NAME:?}}"
