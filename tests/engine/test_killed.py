# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Killed at any instant: whoever comes next finishes the change or takes it back, and nothing is lost."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import compare, configs, state, worker
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import Client, MigError, Orders
from ansible_collections.gpufleet.mig.tests.engine.helpers import Installation
from nvmlsim.errors import ChildKilled

CLIENT = "nvidia-dcgm.service"
ORDERS = Orders(evict="clients", clients=(Client(CLIENT),))

# name: (GPUs, layout of each GPU before (None: MIG off), the wish)
CHANGES = {
    "some stay": (
        "2xa100-sxm4-40gb",
        [
            [("2g.10gb", 0, [(0, 2)]), ("1g.5gb", 2, [(0, 1)]), ("1g.5gb", 3, [(0, 1)]), ("3g.20gb", 4, [(0, 3)])],
            [("3g.20gb", 0, [(0, 3)]), ("3g.20gb", 4, [(0, 3)])],
        ],
        {"label": "3g.20gb,4x1g.5gb"},
    ),
    "on, on Hopper": ("1xh100-sxm5-80gb", [None], {"label": "all-balanced"}),
    "one on and one off": (
        "2xa30-24gb",
        [None, [("2g.12gb", 0, [(0, 2)]), ("2g.12gb", 2, [(0, 1), (1, 1)])]],
        {
            "config": [
                {"devices": [0], "mig-enabled": True, "mig-devices": {"2g.12gb": 2}},
                {"devices": [1], "mig-enabled": False, "mig-devices": {}},
            ]
        },
    ),
}
# What the operator does next, and which of the two layouts that leads to.
NEXT = {
    "the same again": ("new", {}),
    "only heal": ("new", {"wish": {}}),
    "take it back": ("old", {"orders": Orders(recover="back")}),
}


@pytest.fixture
def prepare(make_node, tmp_path):
    """A node before a change, with a client that runs; its state then, and the number of its writes."""
    made = []

    def prepare(name):
        gpus, before, wish = CHANGES[name]
        made.append(Installation(make_node(gpus), tmp_path / f"state{len(made)}", {CLIENT: "active"}))
        node = made[-1]
        for index, layout in enumerate(before):
            if layout is not None:
                node.node.enable(index)
                node.node.create(index, layout)
        node.simulator.reset_calls()
        return node, wish

    return prepare


def change_and_be_killed(node, wish, *, with_parent, operations=None, boot=""):
    """Make a change whose worker dies; with the parent, nobody is left to take it back."""

    def make():
        if with_parent:
            worker._ended_for = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)
        if operations is not None:
            die_at_file_operation(*operations)
        if boot:
            state.boot_id = lambda: boot
        return worker.change(node.places, node.opener, node.job(ORDERS, **wish), node.manager)

    # A worker that had not written down yet what it was about touched nothing, and its caller only says so.
    with contextlib.suppress(ChildKilled, MigError):
        return node.call(make)
    return None


def die_at_file_operation(nth, when):
    """From now on, the process that makes the nth change to a file after its fork is killed, before or after it.

    Counted are the calls that bring a file to the disk or change a folder, in each process by itself.
    """
    mine = os.getpid()
    count = {"pid": 0, "calls": 0}

    def deadly(real):
        def operation(*arguments, **options):
            if os.getpid() == mine:
                return real(*arguments, **options)
            if count["pid"] != os.getpid():
                count.update(pid=os.getpid(), calls=0)
            count["calls"] += 1
            if count["calls"] == nth and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                return real(*arguments, **options)
            finally:
                if count["calls"] == nth and when == "after":
                    os.kill(os.getpid(), signal.SIGKILL)

        return operation

    for name in ("fsync", "replace", "link", "unlink", "mkdir"):
        setattr(os, name, deadly(getattr(os, name)))


def come_next(node, wish, how, boot=""):
    """What the operator does next, from another process."""
    leads_to, changes = NEXT[how]
    job = node.job(changes.get("orders", Orders()), **changes.get("wish", wish))

    def make():
        if boot:
            state.boot_id = lambda: boot
        return worker.change(node.places, node.opener, job, node.manager)

    return leads_to, node.call(make)


def require_whole(node, wish, old, leads_to, where):
    """The node has one of the two layouts, nothing is left of the interruption, and the client runs."""
    if leads_to == "old":
        assert node.node.state() == old, where
    else:
        found = node.read()
        assert compare.verdict(found, configs.resolve(found, **wish)).verdict == "match", where
    assert not any(not gi.compute for gpu in node.read().gpus for gi in gpu.instances), where
    assert state.read_journal(node.places) is None, where
    assert state.holder(node.places) is None, where
    assert node.manager.states() == {CLIENT: "active"}, where


def writes_of(prepare, name):
    node, wish = prepare(name)
    outcome = node.change(orders=ORDERS, **wish)
    assert outcome.error is None
    return len(outcome.steps_done)


@pytest.mark.parametrize("how", NEXT)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", CHANGES)
def test_after_a_kill_at_any_write_the_next_run_leads_to_a_whole_layout(prepare, name, when, how):
    for nth in range(1, writes_of(prepare, name) + 1):
        node, wish = prepare(name)
        old = node.node.state()
        kept = {(index, gi[3]) for index, gpu in enumerate(old) for gi in gpu["instances"]}
        node.simulator.fault("write", nth=nth, when=when, kill=True)
        assert change_and_be_killed(node, wish, with_parent=True) is None
        where = f"{name}: killed {when} write {nth}, then {how}"

        unfinished = state.in_progress(node.places)
        assert (unfinished["running"], unfinished["boot"]) == (False, "this"), where
        assert node.manager.states() == {CLIENT: "inactive"}, where
        leads_to, outcome = come_next(node, wish, how)
        assert outcome.error is None, (where, str(outcome.error), outcome.missing)
        assert outcome.unfinished["txid"] == unfinished["txid"], where
        require_whole(node, wish, old, leads_to, where)
        if name == "some stay":
            untouched = {(0, 2), (0, 9), (0, 10)} & kept
            assert not untouched & {(call.gpu, call.gi) for call in node.simulator.writes(ok=True)}, where


@pytest.mark.parametrize("how", NEXT)
def test_the_timer_that_a_killed_change_left_is_taken_back_by_whoever_comes_next(prepare, tmp_path, monkeypatch, how):
    node, wish = prepare("some stay")
    told = tmp_path / "disarmed"

    def disarm(txid):
        with open(told, "a", encoding="ascii") as file:
            file.write(f"{txid}\n")
        return ""

    monkeypatch.setattr(worker.clients, "disarm", disarm)
    node.simulator.fault("write", nth=1, when="after", kill=True)
    change_and_be_killed(node, wish, with_parent=True)
    unfinished = state.in_progress(node.places)["txid"]
    assert not told.exists()

    _leads_to, outcome = come_next(node, wish, how)
    assert outcome.error is None
    assert unfinished in told.read_text().split()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", CHANGES)
def test_where_only_the_worker_is_killed_its_caller_takes_the_change_back(prepare, name, when):
    for nth in range(1, writes_of(prepare, name) + 1):
        node, wish = prepare(name)
        old = node.node.state()
        node.simulator.fault("write", nth=nth, when=when, kill=True)
        outcome = change_and_be_killed(node, wish, with_parent=False)
        where = f"{name}: killed {when} write {nth}"

        assert "killed by signal 9 (SIGKILL)" in str(outcome.error), where
        assert (outcome.altered, outcome.changed, outcome.rolled_back) == (True, False, True), (where, outcome.missing)
        require_whole(node, wish, old, "old", where)


@pytest.mark.parametrize("how", NEXT)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", ["some stay"])
def test_after_a_kill_at_any_change_of_a_file_the_next_run_leads_to_a_whole_layout(prepare, name, when, how):
    killed = 0
    for nth in range(1, 100):
        node, wish = prepare(name)
        old = node.node.state()
        outcome = change_and_be_killed(node, wish, with_parent=True, operations=(nth, when))
        if outcome is not None and outcome.error is None:
            break
        killed += 1
        where = f"{name}: killed {when} file operation {nth}, then {how}"
        begun = state.read_journal(node.places)
        proven = state.read_wanted(node.places)
        leads_to, outcome = come_next(node, wish, how)
        if begun or how == "the same again":
            assert outcome.error is None, where
            # What is remembered for the next boot is done, and nobody takes it back any more.
            done = begun and proven and begun.txid == proven.txid
            require_whole(node, wish, old, "new" if done else leads_to, where)
        else:
            # There is nothing to heal: it had not begun, or it was over.
            assert node.manager.states() == {CLIENT: "active"}, where
    assert killed > 10


@pytest.mark.parametrize("how", NEXT)
@pytest.mark.parametrize("name", CHANGES)
def test_after_a_power_loss_the_next_run_leads_to_a_whole_layout(prepare, name, how):
    for nth in range(1, writes_of(prepare, name) + 1):
        node, wish = prepare(name)
        old = node.node.state()
        node.simulator.fault("write", nth=nth, when="after", kill=True)
        assert change_and_be_killed(node, wish, with_parent=True, boot="before the power loss") is None
        node.simulator.reboot()
        where = f"{name}: power lost after write {nth}, then {how}"

        leads_to, outcome = come_next(node, wish, how, boot="after the power loss")
        assert outcome.error is None, (where, str(outcome.error), outcome.missing)
        require_whole(node, wish, old, leads_to, where)


def test_a_killed_caller_does_not_keep_the_worker_from_completing(prepare):
    node, wish = prepare("some stay")
    old = node.node.state()

    def make_and_die():
        tell = worker._Worker.run

        def die_first(self):
            os.kill(os.getppid(), signal.SIGKILL)
            return tell(self)

        worker._Worker.run = die_first
        return worker.change(node.places, node.opener, node.job(ORDERS, **wish), node.manager)

    with pytest.raises(ChildKilled):
        node.call(make_and_die)
    # The next run waits for the lock, and finds all done, with a result that nobody has heard of.
    outcome = node.change(orders=ORDERS, **wish)

    assert outcome.error is None
    assert (outcome.changed, outcome.altered) == (False, False)
    assert outcome.resumed["changed"] is True
    assert len(outcome.resumed["before"]) == 2
    require_whole(node, wish, old, "new", "the caller was killed")
