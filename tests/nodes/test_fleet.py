# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The test bed itself: nodes are computers of their own, reboot like computers, and leave nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import typing as t
from pathlib import Path

import pytest

from . import cgroups, observe, scenarios, supervisor
from . import fleet as fleets
from .fleet import Computer, Fleet, Node, NodeError, room_for
from .places import CHECKOUT, FLEETS, ROOT, SCENARIOS, SOCKETS

# Two test runs in one checkout do not take each other's nodes away.
OURS = f"t{os.getpid()}"


@pytest.fixture(name="fleet")
def _fleet() -> t.Iterator[Fleet]:
    """A fleet for one test, not up yet."""
    fleet = Fleet(OURS)
    try:
        yield fleet
    finally:
        fleet.down()


@pytest.fixture(name="shared", scope="module")
def _shared() -> t.Iterator[Fleet]:
    """A fleet with a node called one, for tests that leave it as usable as they found it."""
    fleet = Fleet(f"{OURS}-shared")
    fleet.up(["one="])
    yield fleet
    fleet.down()


def left_of(fleet: str) -> list[str]:
    """All that is still there of a fleet."""
    named = f"{CHECKOUT}-{fleet}."
    found = [f"group {name}" for name in cgroups.names(named)]
    found += [f"network {path.name}" for path in Path("/run/netns").glob(f"{named}*")]
    found += [
        f"mount {line.split()[1]}"
        for line in Path("/proc/mounts").read_text().splitlines()
        if f"{FLEETS / fleet}/" in line
    ]
    found += [str(path) for path in (FLEETS / fleet, SOCKETS / named[:-1]) if path.exists()]
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = process.read_bytes().decode(errors="replace")
        except OSError:
            continue  # it has ended
        if f"{FLEETS / fleet}/" in words or f"--machine={named}" in words:
            found.append(f"process {process.parent.name}: {words}")
    return found


def command(*words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.nodes", *words], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def wait_for(condition: t.Callable[[], t.Any], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.02)


# --- a node is a computer ---------------------------------------------------------------------------------------


def test_node_runs_systemd_without_failed_units_and_knows_its_name(fleet: Fleet) -> None:
    (node,) = fleet.up(["one=2xa100-sxm4-40gb"])
    assert node.wait() == "running"
    assert node.run("hostname").stdout == "one\n"
    assert node.run("cat /proc/1/comm").stdout == "systemd\n"


def test_what_runs_on_a_node_reaches_nothing_but_the_node(shared: Fleet) -> None:
    node = shared.node("one")
    assert node.run("ip -oneline link | wc -l").stdout == "1\n", "there is the loopback device and no other"
    assert node.run("ip route show table all type unicast").stdout == ""


def test_command_fails_with_what_it_said(shared: Fleet) -> None:
    node = shared.node("one")
    with pytest.raises(NodeError, match=r"'ls /no/such' on one ended with 2: .*No such file"):
        node.run(["ls", "/no/such"])
    assert node.run(["printf", "%s", "two words; $HOME"]).stdout == "two words; $HOME"


@pytest.mark.parametrize("user", ["operator", "admin"])
@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "no terminal"])
def test_users_become_root_with_and_without_a_terminal(shared: Fleet, user: str, terminal: bool) -> None:
    words = ["-u", user, "--become", "-m", "raw", "-a", "tty -s && echo terminal; id -u"]
    said = ansible(shared, *words, "-e", f"ansible_ssh_use_tty={terminal}").split()
    assert ("terminal" in said, said[-1]) == (terminal, "0")


# --- power ------------------------------------------------------------------------------------------------------


def test_reboot_is_another_boot_with_the_same_disk(fleet: Fleet) -> None:
    (node,) = fleet.up(["one="])
    before = node.boot_id()
    node.run("touch /etc/kept /run/lost")
    node.reboot()
    assert node.boot_id() != before
    assert node.boots() == 2
    assert node.run("ls /etc/kept /run/lost 2>/dev/null", check=False).stdout == "/etc/kept\n"


def test_power_cut_loses_what_was_in_memory_only_and_asks_nobody(fleet: Fleet) -> None:
    (node,) = fleet.up(["one="])
    before = node.boot_id()
    node.run("touch /etc/kept /run/lost")
    node.kill()
    assert not node.is_on()
    assert cgroups.processes(node.id) == set()
    node.start()
    assert node.boot_id() != before
    assert node.run("ls /etc/kept /run/lost 2>/dev/null", check=False).stdout == "/etc/kept\n"
    assert "Reached target shutdown.target" not in node.run("journalctl --boot=-1 --output=cat").stdout


def test_orderly_stop_lets_units_stop(fleet: Fleet) -> None:
    (node,) = fleet.up(["one="])
    node.stop()
    assert not node.is_on()
    node.start()
    assert "Reached target shutdown.target" in node.run("journalctl --boot=-1 --output=cat").stdout


def test_node_that_cannot_boot_is_said_to_be_off_at_once(fleet: Fleet) -> None:
    (node,) = fleet.up(["one="])
    node.kill()
    (node.folder / "upper/usr/lib/systemd").mkdir(parents=True)
    (node.folder / "upper/usr/lib/systemd/systemd").write_text("no program")
    with pytest.raises(NodeError, match="one went off instead of booting"):
        node.start()


def test_node_that_switched_itself_off_can_be_switched_on(fleet: Fleet) -> None:
    (node,) = fleet.up(["one="])
    node.run("systemctl poweroff", check=False)
    wait_for(lambda: not node.is_on(), "the node to be off")
    node.start()
    assert node.boots() == 2


@pytest.mark.parametrize("how", ["reboot", "power cut"])
@pytest.mark.parametrize(("gpus", "mode"), [("1xa100-sxm4-40gb", True), ("1xh100-sxm5-80gb", False)])
def test_boot_has_the_effect_that_it_has_on_that_generation(fleet: Fleet, how: str, gpus: str, mode: bool) -> None:
    """Instances are gone on all of them; Ampere keeps the mode in its own memory, later ones do not."""
    (node,) = fleet.up([f"one={gpus}"])
    node.simulator.call(divide)
    assert [len(instances) for instances in node.simulator.layouts()] == [1]
    if how == "reboot":
        node.reboot()
    else:
        node.kill()
        node.start()
    assert node.simulator.layouts() == [()]
    assert node.simulator.call(current_mode) is mode


def divide() -> None:
    """Turns MIG on at GPU 0 and makes a GPU instance of one slice."""
    import pynvml

    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    pynvml.nvmlDeviceSetMigMode(gpu, 1)
    profile = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE)
    pynvml.nvmlDeviceCreateGpuInstance(gpu, profile.id)
    pynvml.nvmlShutdown()


def current_mode() -> bool:
    import pynvml

    pynvml.nvmlInit()
    return bool(pynvml.nvmlDeviceGetMigMode(pynvml.nvmlDeviceGetHandleByIndex(0))[0])


# --- fleets -----------------------------------------------------------------------------------------------------


def test_fleets_with_nodes_of_the_same_name_do_not_meet(fleet: Fleet) -> None:
    other = Fleet(f"{fleet.name}-b")
    try:
        (ours,), (theirs,) = fleet.up(["one="]), other.up(["one="])
        for each in (fleet, other):
            each.node("one").run(f"echo {each.name} > /etc/fleet")
        for each in (fleet, other, fleet):
            # Through shared connections, which Ansible keeps for a while.
            assert f"\n{each.name}\n" in ansible(each, "-m", "command", "-a", "cat /etc/fleet") + "\n"
        other.down()
        assert left_of(other.name) == []
        assert ours.run("cat /etc/fleet").stdout == f"{fleet.name}\n"
        assert not theirs.is_on()
    finally:
        other.down()


def test_up_makes_the_fleet_anew(fleet: Fleet) -> None:
    fleet.up(["one=", "two="])
    fleet.node("one").run("touch /etc/old")
    fleet.up(["one="])
    assert [node.name for node in fleet.nodes()] == ["one"]
    assert fleet.node("one").run("ls /etc/old", check=False).returncode == 2
    assert left_of(fleet.name).count(f"network {fleet.node('one').id}") == 1
    assert not Path("/run/netns", Node(fleet.name, "two").id).exists()


def ansible(fleet: Fleet, *words: str) -> str:
    """What the command ansible prints for all nodes of a fleet."""
    done = subprocess.run(
        [scenarios.BIN / "ansible", "-i", SCENARIOS / "inventory" / "nodes.sh", "all", *words],
        env={**scenarios.environment(), "NODES_FLEET": fleet.name},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout


# --- nothing stays ----------------------------------------------------------------------------------------------


def test_down_leaves_nothing_and_can_be_said_twice(fleet: Fleet) -> None:
    fleet.up(["one=1xa100-sxm4-40gb", "two="])
    ansible(fleet, "-m", "ping")
    assert left_of(fleet.name)
    fleet.down()
    assert left_of(fleet.name) == []
    fleet.down()


def test_down_clears_up_after_a_run_that_was_killed(fleet: Fleet) -> None:
    up = command("up", fleet.name, "--node", "one=1xa100-sxm4-40gb", "--node", "two=")
    wait_for((FLEETS / fleet.name / "two" / "boots").exists, "the second node to be switched on")
    up.send_signal(signal.SIGKILL)
    up.wait()
    assert Node(fleet.name, "two").is_on(), "nodes do not end with whoever started them"
    fleet.down()
    assert left_of(fleet.name) == []


def test_down_clears_up_when_a_supervisor_was_killed(fleet: Fleet) -> None:
    (node,) = fleet.up(["one="])
    recorded = json.loads((node.folder / "process.json").read_text())
    os.kill(recorded["pid"], signal.SIGKILL)
    wait_for(lambda: not cgroups.processes(node.id), "all of the node to end with its supervisor")
    fleet.down()
    assert left_of(fleet.name) == []


def test_down_clears_up_when_the_folder_was_deleted(fleet: Fleet) -> None:
    fleet.up(["one="])
    shutil.rmtree(fleet.folder)
    fleet.down()
    assert left_of(fleet.name) == []


def test_pid_that_is_somebody_elses_by_now_is_left_alone(fleet: Fleet) -> None:
    (node,) = fleet.up(["one="])
    node.kill()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as other:
        started = supervisor.start_time(other.pid)
        (node.folder / "process.json").write_text(json.dumps({"pid": other.pid, "started": started - 1}))
        assert not node.is_on()
        node.stop()
        node.kill()
        fleet.down()
        assert other.poll() is None
        assert other.stdin
        other.stdin.close()


# --- whether something happened ---------------------------------------------------------------------------------


def test_nothing_happened_where_nothing_happened(fleet: Fleet) -> None:
    fleet.up(["one=1xa100-sxm4-40gb"])
    observe.remember(fleet)
    ansible(fleet, "-m", "ping")
    assert observe.differences(fleet) == []


@pytest.mark.parametrize(
    ("what", "seen"),
    [
        ("systemctl restart dbus", "one: unit dbus.service is another: "),
        ("systemctl stop dbus.socket dbus", "one: unit dbus.service is gone"),
        ("systemctl daemon-reload", "one: node reloads of systemd is another: "),
        ("echo x > /etc/new", "one: file /etc/new is new"),
        ("touch /etc/there", "one: file /etc/there is another: "),
        ("chmod 600 /etc/there", "one: file /etc/there is another: "),
        ("rm /etc/there", "one: file /etc/there is gone"),
    ],
)
def test_what_happened_on_a_node_is_seen(what: str, seen: str, shared: Fleet) -> None:
    shared.node("one").run("systemctl start dbus; touch /etc/there; chmod 644 /etc/there; rm -f /etc/new")
    observe.remember(shared)
    shared.node("one").run(what)
    assert [line for line in observe.differences(shared) if line.startswith(seen)]


def test_what_a_gpu_was_told_is_seen(fleet: Fleet) -> None:
    fleet.up(["one=1xa100-sxm4-40gb"])
    observe.remember(fleet)
    fleet.simulator("one").call(divide)
    assert observe.differences(fleet) == ["one: GPUs calls that write is another: 0, now 2"]


# --- an image -----------------------------------------------------------------------------------------------------


def test_image_is_provisioned_without_running_and_boots_with_what_was_put_into_it(fleet: Fleet) -> None:
    words = ["ansible", "-i", '"$IMAGE,"', "all", "-c", "community.general.chroot", "-e", "ansible_host=$IMAGE"]
    words += ["-e", "ansible_python_interpreter=/usr/bin/python3", "-m", "copy", "-a", '"content=ours dest=/etc/ours"']
    folder = ROOT / ".venv" / "nodes" / f"image-{OURS}"
    try:
        run = [sys.executable, "-m", "tests.nodes", "image", str(folder), "--", "sh", "-c", " ".join(words)]
        done = subprocess.run(run, cwd=ROOT, env=scenarios.environment(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert str(folder) not in Path("/proc/mounts").read_text()
        (node,) = fleet.up(["one=1xa100-sxm4-40gb"], lower=[folder / "upper"])
        assert node.run("cat /etc/ours").stdout == "ours"
    finally:
        fleet.down()
        shutil.rmtree(folder)


# --- what is said about a node ----------------------------------------------------------------------------------


def test_node_is_described_in_one_line() -> None:
    computer = Computer.parse("a=1xa30-24gb,3xh100-sxm5-80gb,driver=570,fabric_manager=on,assume=own_destroys:no")
    assert computer.gpus == "1xa30-24gb,3xh100-sxm5-80gb"
    assert computer.options == {"driver": "570", "fabric_manager": True, "assume": {"own_destroys": "no"}}


def test_more_nodes_than_this_machine_bears_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleets, "most_nodes", lambda: 3)
    with (
        pytest.raises(NodeError, match="no room for 4 more nodes: this machine bears 3, .* raise a limit"),
        room_for(4),
    ):
        raise AssertionError("let in")


def test_nodes_wait_for_room_until_others_are_gone(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet.up(["one="])
    monkeypatch.setattr(cgroups, "names", lambda _: ["one"] if fleet.node("one").is_on() else [])
    monkeypatch.setattr(fleets, "most_nodes", lambda: 1)
    with pytest.raises(NodeError, match="this machine bears 1, and 1 are on"), room_for(1, seconds=0):
        raise AssertionError("let in")
    off = threading.Timer(0.5, fleet.node("one").kill)
    off.start()
    with room_for(1, seconds=60):
        assert not fleet.node("one").is_on()
    off.join()


def test_board_that_nobody_knows_is_refused_with_those_that_are_known_and_leaves_nothing(fleet: Fleet) -> None:
    with pytest.raises(NodeError, match="b: no board 'h100-80gb' is known; boards: .*h100-sxm5-80gb"):
        fleet.up(["a=1xa30-24gb", "b=2xh100-80gb"])
    assert left_of(OURS) == []


def test_unknown_option_of_a_node_is_refused() -> None:
    with pytest.raises(NodeError, match="'colour' is no option of a node"):
        Computer.parse("a=1xa30-24gb,colour=red")


@pytest.mark.parametrize("name", ["", "A", "a_b", "-a", "a/b", "..", "a" * 25])
def test_name_that_would_not_do_as_a_name_of_a_network_is_refused(name: str) -> None:
    with pytest.raises(NodeError, match="is no name of a fleet"):
        Fleet(name)
