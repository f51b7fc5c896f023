# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What hosts that are as wanted cost: counted, not timed, on a small fleet of `make bench-fleet`."""

from __future__ import annotations

from ansible_collections.gpufleet.mig.tests.benchmark.fleet import LargeFleet
from nvmlsim import Simulator


def test_a_host_that_is_as_wanted_costs_one_task_and_one_module_call_and_its_plan_is_brief(tmp_path):
    fleet = LargeFleet(tmp_path / "fleet", 10)
    seen = tmp_path / "seen.yml"
    # The plans are looked at in the same run, after the playbook is through.
    seen.write_text(
        """
- ansible.builtin.import_playbook: gpufleet.mig.mig
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.debug:
        msg: "SIZE={{ groups['all'] | map('extract', hostvars, '__mig_plan') | map('to_json') | map('length') | max }}."
      run_once: true
"""
    )
    cost = fleet.cost(str(seen))
    first, *others = fleet.names

    assert cost.calls == dict.fromkeys(fleet.names, 1), "Pythons that Ansible started on each host"
    assert {cost.tasks[name] for name in others} == {1}, cost.out
    assert cost.tasks[first] <= 4, "what is run once: the waves, the plan that is kept, and the look at the sizes"
    assert cost.changed == 0
    # 56 MIG devices. In full it is 49,000, each value of which the controller copies and walks several times.
    assert int(cost.out.partition("SIZE=")[2].partition(".")[0]) < 4000
    for name in fleet.names:
        assert Simulator(fleet.folder / "nodes" / name).writes() == []
