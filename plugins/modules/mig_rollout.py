# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# The code is in plugins/action/mig_rollout.py: no host is asked anything.

from __future__ import annotations

DOCUMENTATION = r"""
module: mig_rollout
short_description: Make the waves of a rollout from what all hosts of a play plan
version_added: 0.1.0
description:
  - Runs once for a play, on the controller. It reads what every host of the play has planned, which is the result of
    M(gpufleet.mig.mig_config) in check mode that P(gpufleet.mig.mig#role) registers with C(tasks_from=plan.yml), and
    the settings below, and asks no host anything.
  - It shows one table of the whole fleet, and fails where the rollout must not begin. That happens before the first
    host is touched.
  - It is a part of the playbook C(gpufleet.mig.mig), whose second play takes its hosts, the sizes of its waves, and
    its limit for failures from here.
  - The settings are variables and not options, because a play keyword has one value, while inventory, play and C(-e)
    may have one for each host. If two hosts of the play have different values, the task fails and names both.
  - C(mig_serial) are the sizes of waves, numbers of hosts or percentages of the hosts that are to be changed, as a
    list or as text such as C(1,10%,100%). The last one is repeated. Without it every wave is one host.
  - C(mig_max_fail_percentage) is how much of a wave may fail or get lost without the rollout being stopped after it.
    Without it the first host that fails stops the rollout.
  - C(mig_preflight) says what becomes of a rollout of which some hosts refuse their change or do not answer. With
    V(strict), which counts without it, nothing is begun. With V(warn) the other hosts are changed, and the run fails
    at its end. With V(off) no host is asked before its turn.
  - C(mig_canary) are names of hosts and groups that go first. Without it that is the group C(mig_canary), if there is
    one. After them comes one host of each kind, which is the same boards with the same change, and then all others in
    the order of the inventory.
  - C(mig_keep_available) are MIG devices by profile that must be there at any time on the hosts of the play that are
    not being changed, as a mapping or as text such as C(40x1g.10gb,2x3g.40gb). Waves get smaller for it.
  - C(mig_pause_between_waves) are seconds to wait between two waves.
  - C(mig_take_over_drain) goes on with hosts that another run has drained for another layout and not given back.
    Without it they are refused. With C(mig_rollback_of) it means drains for that label only.
  - C(mig_wave_tasks) are looked for here already, so that a file of checks that does not exist is not missed after a
    wave.
  - C(mig_tolerate_unreachable) leaves out the hosts that do not answer before the first wave. A host that gets lost
    later stops the rollout all the same.
extends_documentation_fragment:
  - gpufleet.mig.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  idempotent:
    support: full
options: {}
seealso:
  - module: gpufleet.mig.mig_config
author:
  - the gpufleet.mig authors (@gpufleet)
"""

EXAMPLES = r"""
- name: Plan
  ansible.builtin.import_role:
    name: gpufleet.mig.mig
    tasks_from: plan.yml
  vars:
    __mig_for_many: true

- name: Make waves of it
  gpufleet.mig.mig_rollout:
  run_once: true
  register: __mig_rollout
"""

RETURN = r"""
msg:
  description: What was planned, in one sentence, or why the rollout does not begin and what to do next.
  returned: always
  type: str
settings:
  description: The settings that count, by their names without C(mig_).
  returned: success
  type: dict
hosts:
  description: What each host of the play plans, by its name.
  returned: success
  type: dict
  contains:
    state:
      description: V(change) when GPUs are to be touched, V(remember) when only a record of the host is to be written,
        V(right), V(refused), V(unreachable), or V(unplanned) when it was not asked.
      type: str
    reason:
      description: Why it is refused, in a word or two. V(busy), V(reserved), V(impossible), V(pending), V(drained),
        V(cannot tell) or V(refused).
      type: str
    msg:
      description: What the host said.
      type: str
    label:
      description: The label that it is to have.
      type: str
    boards:
      description: Product names of its GPUs.
      type: list
      elements: str
    before:
      description: A line of text for each GPU.
      type: list
      elements: str
    after:
      description: The same for what is planned.
      type: list
      elements: str
    devices_before:
      description: Number of MIG devices by profile.
      type: dict
    devices_after:
      description: The same for what is planned.
      type: dict
    unlisted:
      description: Number of GPUs that no wish names.
      type: int
    without_mig:
      description: Number of GPUs that cannot do MIG.
      type: int
counts:
  description: Number of hosts by state.
  returned: when all settings can be used
  type: dict
waves:
  description: The hosts of each wave. Hosts on which no GPU is touched are one wave at the end.
  returned: success
  type: list
  elements: list
order:
  description: The hosts of all waves in one list.
  returned: success
  type: list
  elements: str
sizes:
  description: Number of hosts of each wave.
  returned: success
  type: list
  elements: int
left_out:
  description: Hosts that are not right and not in a wave.
  returned: success
  type: list
  elements: str
planned:
  description: When this was, in seconds since 1970.
  returned: success
  type: float
"""
