# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a boot gives the GPUs of a node, on every generation, and what it says of those that cannot have theirs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import boot, bounded, cli, state, worker
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import DriverError, MigError, Orders, WishError
from ansible_collections.gpufleet.mig.tests.engine.helpers import Installation, places
from ansible_collections.gpufleet.mig.tests.engine.test_cli import command, destroy_everything, interrupt, layout_of
from nvmlsim import ChildKilled

GENERATIONS = {
    "a30-24gb": "all-2g.12gb",
    "a100-sxm4-40gb": "3g.20gb,2g.10gb,1g.5gb",
    "h100-sxm5-80gb": "all-balanced",
    "b200-180gb": "all-1g",
    "rtx-pro-6000-server": "all-2g",
}


class Machine:
    """What the kernel of a node shows of its PCI bus, in a tree of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.devices = root / "sys/bus/pci/devices"
        for folder in (
            self.devices,
            *(root / "sys/bus/pci/drivers" / name for name in ("nvidia", "vfio-pci", "nouveau")),
        ):
            folder.mkdir(parents=True)

    def add(self, address: str, bound_to: str = "nvidia", vendor: str = "0x10de", kind: str = "0x030200") -> Path:
        device = self.devices / address.lower()[-12:]
        device.mkdir()
        (device / "vendor").write_text(f"{vendor}\n")
        (device / "class").write_text(f"{kind}\n")
        if bound_to:
            (device / "driver").symlink_to(f"../../drivers/{bound_to}")
        return device


@pytest.fixture
def install(install):
    """Make a node with a state directory, with this label on it, as it is right after a reboot."""

    def make(label: str = "", *gpus: str, **options: t.Any) -> Installation:
        installed = install(label, *gpus, **options)
        if label:
            installed.simulator.reboot()
        installed.simulator.reset_calls()
        return installed

    return make


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path / "machine")


def booted(installed, machine=None, wait=0.0, orders=None, fallback=False) -> boot.Booted:
    """Boot where this node is seen. Without a machine nobody can tell what is on the bus."""
    root = str(machine.root if machine else Path(installed.places.state) / "nothing")

    def work() -> boot.Booted:
        return boot.boot(
            installed.places, installed.opener, orders or Orders(lock_timeout=0.0), wait, fallback=fallback, root=root
        )

    return t.cast(boot.Booted, installed.call(work))


def boot_ids(monkeypatch, installed) -> None:
    """Every boot has its own name, as the kernel gives it."""
    counter = Path(installed.places.state).parent / "boots"
    counter.write_text("0")
    monkeypatch.setattr(state, "boot_id", counter.read_text)


def reboot(installed) -> None:
    counter = Path(installed.places.state).parent / "boots"
    if counter.exists():
        counter.write_text(str(int(counter.read_text()) + 1))
    installed.simulator.reboot()
    installed.simulator.reset_calls()


def all_places(installed) -> list[t.Any]:
    return [places(gpu) for gpu in installed.read().gpus]


def contents(installed) -> dict[str, bytes]:
    """All files that outlive a boot."""
    folder = Path(installed.places.state)
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def wish(installed, **given: t.Any) -> None:
    """Have the image want something, as mig_boot_wish does."""
    empty: dict[str, t.Any] = {"label": "", "label_by_gpu": {}, "configs": {}, "unlisted": "ignore"}
    state.write_wish(
        installed.places,
        state.Wish(written=state.utc_now(), **{**empty, "allow_empty": False, "expected_gpus": None, **given}),
    )


def sentences(result: boot.Booted) -> str:
    return " ".join(failure.sentence for failure in result.failures)


# --- what is remembered ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("board", GENERATIONS)
def test_every_generation_has_its_mode_and_its_exact_layout_again(make_node, tmp_path, board):
    installed = Installation(make_node(f"2x{board}"), tmp_path / "state")
    assert installed.change(label=GENERATIONS[board]).error is None
    before = installed.node.state()
    remembered = contents(installed)
    reboot(installed)
    assert installed.node.state() != before
    result = booted(installed)
    assert (result.failures, result.changed, result.source) == ((), True, "wanted.json")
    assert installed.node.state() == before
    assert contents(installed) == remembered
    assert result.warnings == ()


@pytest.mark.parametrize("board", GENERATIONS)
def test_loading_the_driver_anew_is_a_boot_for_the_gpus(make_node, tmp_path, board):
    installed = Installation(make_node(f"1x{board}"), tmp_path / "state")
    assert installed.change(label=GENERATIONS[board]).error is None
    before = installed.node.state()
    installed.simulator.reload()
    assert booted(installed).failures == ()
    assert installed.node.state() == before


def test_a_second_start_is_quiet_and_writes_nothing(install):
    installed = install("all-1g.5gb", gpus="2xa100-sxm4-40gb")
    booted(installed)
    installed.simulator.reset_calls()
    remembered = contents(installed)
    result = booted(installed)
    assert (result.changed, result.failures, result.warnings) == (False, (), ())
    assert installed.simulator.writes() == []
    sessions = [call for call in installed.simulator.calls() if call.function.startswith("nvmlInit")]
    assert len(sessions) == 1
    assert contents(installed) == remembered


def test_layouts_that_a_label_cannot_say_come_back_too(install):
    installed = install()
    installed.node.enable(0)
    installed.node.create(0, [("3g.20gb", 4, [(0, 1), (1, 1)]), ("1g.5gb", 1, []), ("2g.10gb", 2, [(0, 2)])])
    layout = json.loads(json.dumps([cli.layouts.dump(gpu) for gpu in installed.read().gpus]))
    assert installed.change(resolve=lambda node: cli.layouts.resolve(node, layout)).error is None
    before = installed.node.state()
    reboot(installed)
    assert booted(installed).failures == ()
    assert installed.node.state() == before


def test_a_mode_that_somebody_left_on_is_turned_off_again(install):
    installed = install("all-disabled")
    installed.node.enable(0)
    reboot(installed)
    assert booted(installed).failures == ()
    assert installed.read().gpus[0].mode_current is False


def test_a_node_that_remembers_nothing_is_left_alone_without_asking_its_driver(install):
    installed = install()
    result = booted(installed)
    assert result.done == ("Nothing is remembered of the GPUs of this node: there is nothing to do.",)
    assert installed.simulator.calls() == []


# --- GPU by GPU -----------------------------------------------------------------------------------------------------


def test_a_gpu_that_is_gone_fails_and_the_others_get_theirs(install, machine):
    installed = install("all-1g.5gb", gpus="3xa100-sxm4-40gb")
    wanted = json.loads(Path(installed.places.state, "wanted.json").read_text())
    gone = {**wanted["gpus"][0], "index": 3, "uuid": "GPU-gone", "pci_bus_id": "00000000:FF:00.0"}
    wanted["gpus"].append(gone)
    Path(installed.places.state, "wanted.json").write_text(json.dumps(wanted))
    for gpu in installed.read().gpus:
        machine.add(gpu.pci_bus_id)
    started = time.monotonic()
    result = booted(installed, machine, wait=60)
    assert time.monotonic() - started < 20, "what is not on the bus is not waited for"
    assert [failure.gpu for failure in result.failures] == ["GPU 3 (00000000:FF:00.0, GPU-gone, NVIDIA A100-SXM4-40GB)"]
    assert "is not in this node any more: see 'lspci -d 10de:' and 'dmesg'" in sentences(result)
    assert all(len(layout) == 7 for layout in all_places(installed))
    assert "GPU-gone" in Path(installed.places.state, "wanted.json").read_text(), "it may come back"


@pytest.mark.parametrize("call", ["nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetMigMode"])
def test_a_gpu_that_does_not_answer_fails_and_the_others_get_theirs(install, call):
    installed = install("all-1g.5gb", gpus="3xa100-sxm4-40gb")
    installed.simulator.fault(call, code="GPU_IS_LOST", gpu=1)
    result = booted(installed)
    assert len(result.failures) == 1
    assert "GPU_IS_LOST" in sentences(result)
    installed.simulator.clear_faults()
    assert [len(layout) for layout in all_places(installed)] == [7, 0, 7]
    assert booted(installed).failures == ()
    assert [len(layout) for layout in all_places(installed)] == [7, 7, 7]


def test_a_board_that_was_replaced_is_refused_with_both_names_and_the_others_get_theirs(install):
    installed = install("all-1g", gpus="2xh100-sxm5-80gb")
    wanted = json.loads(Path(installed.places.state, "wanted.json").read_text())
    wanted["gpus"][0]["uuid"] = "GPU-11111111-2222-3333-4444-555555555555"
    Path(installed.places.state, "wanted.json").write_text(json.dumps(wanted))
    result = booted(installed)
    assert len(result.failures) == 1
    assert "was replaced: at 00000000:" in sentences(result)
    assert "GPU-11111111-2222-3333-4444-555555555555" in sentences(result)
    assert installed.read().gpus[0].uuid in sentences(result)
    assert [len(layout) for layout in all_places(installed)] == [0, 7]


def test_boards_are_found_by_place_and_identity_whatever_their_indices_are_now(install):
    installed = install("all-1g.5gb", gpus="2xa100-sxm4-40gb")
    wanted = json.loads(Path(installed.places.state, "wanted.json").read_text())
    for dump in wanted["gpus"]:
        dump["index"] = 1 - dump["index"]
    wanted["gpus"][1]["instances"] = wanted["gpus"][1]["instances"][:1]
    Path(installed.places.state, "wanted.json").write_text(json.dumps(wanted))
    assert booted(installed).failures == ()
    by_uuid = {gpu.uuid: len(gpu.instances) for gpu in installed.read().gpus}
    assert by_uuid == {dump["uuid"]: len(dump["instances"]) for dump in wanted["gpus"]}


def test_a_gpu_on_which_a_step_fails_gets_nothing_and_the_others_get_theirs(install):
    installed = install("all-1g.5gb", gpus="3xa100-sxm4-40gb")
    installed.simulator.fault("nvmlDeviceCreateGpuInstanceWithPlacement", code="UNKNOWN", gpu=1)
    result = booted(installed)
    assert len(result.failures) == 1
    assert "nvmlDeviceCreateGpuInstanceWithPlacement on GPU 1" in sentences(result)
    installed.simulator.clear_faults()
    assert [len(layout) for layout in all_places(installed)] == [7, 0, 7]
    assert state.read_journal(installed.places) is None


def test_two_gpus_that_fail_are_both_named(install):
    installed = install("all-1g.5gb", gpus="4xa100-sxm4-40gb")
    for gpu in (0, 2):
        installed.simulator.fault("nvmlGpuInstanceCreateComputeInstanceWithPlacement", code="UNKNOWN", gpu=gpu)
    result = booted(installed)
    assert len(result.failures) == 2
    installed.simulator.clear_faults()
    assert [len(layout) for layout in all_places(installed)] == [0, 7, 0, 7]


def test_a_gpu_that_is_in_use_is_not_taken_from_anybody_and_the_others_get_theirs(install):
    installed = install("all-1g", gpus="2xh100-sxm5-80gb")
    with installed.simulator.occupy(gpu=0):
        result = booted(installed)
    assert len(result.failures) == 1
    assert "is in use and nothing was changed" in sentences(result)
    assert [len(layout) for layout in all_places(installed)] == [0, 7]


def test_a_mode_that_stays_pending_waits_and_the_other_gpus_get_their_instances(install):
    installed = install("all-1g.5gb", gpus="2xa100-sxm4-40gb")
    installed.node.in_session(lambda session: [session.set_mig_mode(gpu, False) for gpu in (0, 1)])
    with installed.simulator.occupy(gpu=0, kind="client"):
        result = booted(installed)
    assert [failure.waits for failure in result.failures] == [True]
    assert "needs a reset or reboot before MIG is on, which is stored" in sentences(result)
    assert [len(layout) for layout in all_places(installed)] == [0, 7]


def test_a_passed_through_ampere_is_never_sent_into_another_reboot(install):
    installed = install(gpus="2xa100-sxm4-40gb", virtualization="passthrough")
    installed.node.enable(0, 1)
    reboot(installed)
    assert installed.change(label="all-1g.5gb").error is None
    destroy_everything(installed)
    installed.node.in_session(lambda session: session.set_mig_mode(0, False))
    reboot(installed)
    result = booted(installed)
    assert len(result.failures) == 1
    assert "takes effect at a reboot only" in sentences(result)
    assert "nvmlDeviceSetMigMode" not in {call.function for call in installed.simulator.writes()}
    assert [len(layout) for layout in all_places(installed)] == [0, 7]


def test_other_uuids_than_before_are_told(install):
    installed = install("all-3g.20gb")
    wanted = json.loads(Path(installed.places.state, "wanted.json").read_text())
    wanted["gpus"][0]["instances"][0]["compute_instances"][0]["uuid"] = "MIG-of-before"
    Path(installed.places.state, "wanted.json").write_text(json.dumps(wanted))
    (said,) = booted(installed).warnings
    assert said.endswith(" now, and had MIG-of-before.")


# --- going back -----------------------------------------------------------------------------------------------------


def test_nothing_but_what_is_remembered_is_tried_unless_that_is_asked_for(install):
    installed = install("all-3g.20gb")
    booted(installed)
    assert installed.change(label="all-1g.5gb").error is None
    reboot(installed)
    installed.simulator.fault("nvmlDeviceCreateGpuInstanceWithPlacement", nth=7, code="UNKNOWN")
    result = booted(installed)
    assert len(result.failures) == 1
    assert layout_of(installed) == []


def test_a_gpu_falls_back_to_what_it_had_before_where_that_is_asked_for_and_it_is_a_failure_all_the_same(install):
    installed = install("all-3g.20gb", gpus="2xa100-sxm4-40gb")
    booted(installed)
    assert installed.change(label="all-1g.5gb").error is None
    remembered = contents(installed)
    reboot(installed)
    installed.simulator.fault("nvmlDeviceCreateGpuInstanceWithPlacement", nth=7, gpu=1, code="UNKNOWN")
    result = booted(installed, fallback=True)
    assert len(result.failures) == 1
    assert "has the layout from before the one that is remembered" in " ".join(result.done)
    assert [[name for name, _place, _ci in layout] for layout in all_places(installed)] == [
        ["1g.5gb"] * 7,
        ["3g.20gb"] * 2,
    ]
    assert contents(installed) == remembered


# --- what was interrupted -------------------------------------------------------------------------------------------


def test_a_change_in_the_middle_of_which_the_power_failed_is_finished_and_remembered(install, monkeypatch):
    installed = install("all-3g.20gb", gpus="2xa100-sxm4-40gb")
    boot_ids(monkeypatch, installed)
    booted(installed)
    interrupt(installed, label="all-1g.5gb")
    reboot(installed)
    result = booted(installed)
    assert result.failures == ()
    assert result.done[0].startswith("The unfinished change 20")
    assert result.done[0].endswith(" is finished.")
    assert [len(layout) for layout in all_places(installed)] == [7, 7]
    wanted = state.read_wanted(installed.places)
    assert wanted is not None
    assert [len(dump["instances"]) for dump in wanted.gpus] == [7, 7]
    assert state.read_journal(installed.places) is None


def test_gpus_that_an_unfinished_change_does_not_concern_get_what_is_remembered(install, monkeypatch):
    installed = install("all-3g.20gb", gpus="2xa100-sxm4-40gb")
    boot_ids(monkeypatch, installed)
    booted(installed)
    interrupt(installed, label="all-1g.5gb", gpus="1")
    reboot(installed)
    assert booted(installed).failures == ()
    assert [len(layout) for layout in all_places(installed)] == [2, 7]


def test_a_change_that_a_boot_was_finishing_when_the_node_went_down_again_is_taken_back(install, monkeypatch):
    installed = install("all-3g.20gb")
    boot_ids(monkeypatch, installed)
    booted(installed)
    interrupt(installed, label="all-1g.5gb")
    reboot(installed)
    installed.simulator.fault("nvmlDeviceCreateGpuInstanceWithPlacement", nth=3, when="after", kill=True)
    with monkeypatch.context() as dying:
        dying.setattr(worker, "_ended_for", lambda *_arguments: os.kill(os.getpid(), signal.SIGKILL))
        with pytest.raises(ChildKilled):
            booted(installed)
    installed.simulator.clear_faults()
    reboot(installed)
    result = booted(installed)
    assert result.failures == ()
    assert result.done[0].endswith(" is taken back.")
    assert len(layout_of(installed)) == 2
    wanted = state.read_wanted(installed.places)
    assert wanted is not None
    assert len(wanted.gpus[0]["instances"]) == 2


def test_an_unfinished_change_of_a_gpu_that_is_lost_now_is_ended_for_the_others(install, monkeypatch):
    installed = install("all-3g.20gb", gpus="2xa100-sxm4-40gb")
    boot_ids(monkeypatch, installed)
    booted(installed)
    interrupt(installed, nth=9, label="all-1g.5gb")
    reboot(installed)
    installed.simulator.fault("nvmlDeviceGetHandleByIndex_v2", code="GPU_IS_LOST", gpu=1)
    result = booted(installed)
    assert "GPU_IS_LOST" in sentences(result)
    assert len(layout_of(installed)) == 7


def test_gpus_whose_mode_waited_for_this_reboot_are_left_to_the_run_that_waits(install, monkeypatch):
    installed = install(gpus="2xa100-sxm4-40gb", virtualization="passthrough")
    installed.node.enable(0, 1)
    boot_ids(monkeypatch, installed)
    reboot(installed)
    assert installed.change(label="all-1g.5gb").error is None
    orders = Orders(allow_reboot=True, run_id="4711", lease=1800, who="alice")
    outcome = installed.change(label="all-disabled", gpus="0", orders=orders)
    assert outcome.reboot_required == (0,)
    reboot(installed)
    record = Path(installed.places.state, "reboot.json").read_bytes()
    result = booted(installed)
    assert result.failures == ()
    (said,) = result.left
    assert said.startswith("GPU 0 (00000000:")
    assert "is left as it is for the run of alice that waits for a reboot" in said
    gpus = installed.read().gpus
    assert [(gpu.mode_current, len(gpu.instances)) for gpu in gpus] == [(False, 0), (True, 7)]
    assert Path(installed.places.state, "reboot.json").read_bytes() == record
    assert installed.change(label="all-disabled", gpus="0", orders=orders).error is None
    assert state.read_lease(installed.places) is None


# --- waiting --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def cleared_after_calls(installed, number):
    """The faults of this node go when the driver was asked so many times."""
    stop = threading.Event()

    def wait() -> None:
        while not stop.wait(0.02):
            if sum(call.function.startswith("nvmlInit") for call in installed.simulator.calls()) >= number:
                installed.simulator.clear_faults()
                return

    thread = threading.Thread(target=wait)
    thread.start()
    yield
    stop.set()
    thread.join()


@pytest.mark.parametrize("code", ["DRIVER_NOT_LOADED", "UNKNOWN", "LIB_RM_VERSION_MISMATCH"])
def test_a_driver_that_comes_late_is_waited_for(install, machine, code):
    installed = install("all-1g.5gb")
    machine.add(installed.read().gpus[0].pci_bus_id)
    installed.simulator.reset_calls()
    installed.simulator.fault("nvmlInit", code=code)
    with cleared_after_calls(installed, 3):
        result = booted(installed, machine, wait=60)
    assert result.failures == ()
    assert len(layout_of(installed)) == 7


def test_a_driver_that_never_comes_is_a_failure_that_says_why_when_the_time_is_over(install, machine):
    installed = install("all-1g.5gb")
    machine.add(installed.read().gpus[0].pci_bus_id)
    installed.simulator.fault("nvmlInit", code="DRIVER_NOT_LOADED")
    started = time.monotonic()
    with pytest.raises(boot.NotReady, match=r"The driver did not answer within 1 s\. nvmlInit .* DRIVER_NOT_LOADED"):
        booted(installed, machine, wait=1)
    assert 1 <= time.monotonic() - started < 10
    assert installed.simulator.writes() == []


def test_a_kernel_without_the_module_is_named_as_the_reason(install, machine):
    installed = install("all-1g.5gb")
    machine.add(installed.read().gpus[0].pci_bus_id, bound_to="")
    modules = machine.root / "lib/modules" / os.uname().release
    modules.mkdir(parents=True)
    (modules / "modules.dep").write_text("kernel/drivers/net/veth.ko:\nkernel/x/nvidia-things.ko: y.ko\n")
    installed.simulator.fault("nvmlInit", code="DRIVER_NOT_LOADED")
    with pytest.raises(boot.NotReady, match="There is no module nvidia for the running kernel"):
        booted(installed, machine)
    (modules / "modules.dep").write_text("updates/dkms/nvidia.ko.xz: z.ko\n")
    with pytest.raises(boot.NotReady, match=r"within 0 s\. nvmlInit"):
        booted(installed, machine)


def test_what_no_waiting_brings_is_not_waited_for(install, machine):
    installed = install("all-1g.5gb")
    machine.add(installed.read().gpus[0].pci_bus_id)

    def has_no_binding(_watch: bounded.Watch) -> t.NoReturn:
        raise DriverError("There is no binding.", error="BINDING_MISSING")

    installed.opener = has_no_binding
    started = time.monotonic()
    with pytest.raises(DriverError, match="There is no binding"):
        booted(installed, machine, wait=60)
    assert time.monotonic() - started < 20


def test_a_driver_that_hangs_ends_the_boot(install):
    installed = install("all-1g.5gb")
    installed.simulator.fault("nvmlDeviceGetMigMode", hang=True)
    with pytest.raises(MigError, match="The driver does not answer: it was to read GPU 0"):
        booted(installed, wait=60, orders=Orders(operation_timeout=1.0))


def test_a_gpu_that_is_on_the_bus_and_not_with_the_driver_is_waited_for_and_then_named(install, machine):
    installed = install("all-1g.5gb")
    gpu = installed.read().gpus[0]
    wanted = json.loads(Path(installed.places.state, "wanted.json").read_text())
    slow = {**wanted["gpus"][0], "index": 1, "uuid": "GPU-slow", "pci_bus_id": "00000000:C1:00.0"}
    wanted["gpus"].append(slow)
    Path(installed.places.state, "wanted.json").write_text(json.dumps(wanted))
    for address in (gpu.pci_bus_id, "0000:c1:00.0"):
        machine.add(address)
    started = time.monotonic()
    result = booted(installed, machine, wait=1)
    assert time.monotonic() - started >= 1
    assert "GPU-slow" in sentences(result)
    assert len(layout_of(installed)) == 7


@pytest.mark.parametrize("other", ["vfio-pci", "nouveau", ""])
def test_gpus_that_are_not_the_drivers_are_not_waited_for(install, machine, other):
    installed = install("all-1g.5gb")
    machine.add(installed.read().gpus[0].pci_bus_id)
    machine.add("0000:c1:00.0", bound_to=other)
    machine.add("0000:c2:00.0", kind="0x068000")
    machine.add("0000:c3:00.0", vendor="0x8086")
    (machine.add("0000:c4:00.0") / "physfn").mkdir()
    started = time.monotonic()
    assert booted(installed, machine, wait=60).failures == ()
    assert time.monotonic() - started < 20


def test_a_machine_that_has_lost_all_gpus_says_so_at_once(install, machine):
    installed = install("all-1g.5gb")
    installed.simulator.fault("nvmlInit", code="DRIVER_NOT_LOADED")
    started = time.monotonic()
    with pytest.raises(boot.NotReady, match="There is no NVIDIA GPU on the PCI bus of this machine"):
        booted(installed, machine, wait=60)
    assert time.monotonic() - started < 20


# --- what an image wants --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("board", ["a100-sxm4-40gb", "h100-sxm5-80gb", "a30-24gb"])
def test_the_first_boot_of_an_image_makes_and_remembers_what_its_label_means_on_these_gpus(install, machine, board):
    installed = install(gpus=f"2x{board}")
    for gpu in installed.read().gpus:
        machine.add(gpu.pci_bus_id)
    wish(installed, label="all-1g")
    result = booted(installed, machine)
    assert (result.failures, result.source) == ((), "wish.json")
    number = 4 if board == "a30-24gb" else 7
    assert [len(layout) for layout in all_places(installed)] == [number] * 2
    wanted = state.read_wanted(installed.places)
    assert wanted is not None
    assert (wanted.label, wanted.source, wanted.who) == ("all-1g", "generated", "")
    before = installed.node.state()
    reboot(installed)
    assert booted(installed, machine).source == "wanted.json"
    assert installed.node.state() == before


def test_an_image_in_a_machine_without_gpu_has_nothing_to_do(install, machine):
    installed = install()
    machine.add("0000:00:02.0", vendor="0x1234")
    wish(installed, label="all-1g")
    result = booted(installed, machine, wait=60)
    assert result.done == ("This machine has no NVIDIA GPU: there is nothing to do.",)
    assert installed.simulator.calls() == []


def test_each_gpu_of_a_mixed_machine_gets_its_own_and_one_without_mig_nothing(install):
    installed = install(gpus="1xa30-24gb,1xh100-sxm5-80gb,1xtesla-t4")
    wish(installed, label="all-1g", label_by_gpu={"NVIDIA A30": "all-disabled"})
    result = booted(installed)
    assert result.failures == ()
    gpus = installed.read().gpus
    assert [(gpu.mode_current or False, len(gpu.instances)) for gpu in gpus] == [(False, 0), (True, 7), (False, 0)]


def test_a_wish_that_one_gpu_cannot_have_fails_for_it_and_is_tried_again_by_the_next_boot(install):
    installed = install(gpus="1xa30-24gb,1xa100-sxm4-40gb")
    wish(installed, label="all-3g.20gb")
    result = booted(installed)
    assert [failure.gpu[:5] for failure in result.failures] == ["GPU 0"]
    assert "3g.20gb" in sentences(result)
    assert [len(layout) for layout in all_places(installed)] == [0, 2]
    assert state.read_wanted(installed.places) is None
    assert len(booted(installed).failures) == 1


def test_a_gpu_that_fails_at_the_first_boot_is_not_forgotten(install):
    installed = install(gpus="2xa100-sxm4-40gb")
    wish(installed, label="all-1g.5gb")
    installed.simulator.fault("nvmlDeviceCreateGpuInstanceWithPlacement", code="UNKNOWN", gpu=1)
    assert len(booted(installed).failures) == 1
    assert state.read_wanted(installed.places) is None
    installed.simulator.clear_faults()
    reboot(installed)
    assert booted(installed).failures == ()
    assert [len(layout) for layout in all_places(installed)] == [7, 7]
    assert state.read_wanted(installed.places) is not None


def test_a_gpu_that_the_driver_does_not_show_keeps_the_first_boot_from_remembering_half(install, machine):
    installed = install()
    machine.add(installed.read().gpus[0].pci_bus_id)
    machine.add("0000:c1:00.0")
    wish(installed, label="all-1g.5gb")
    result = booted(installed, machine)
    assert sentences(result).startswith("The GPU at 0000:c1:00.0 is on the PCI bus, and the driver does not show it")
    assert len(layout_of(installed)) == 7
    assert state.read_wanted(installed.places) is None


def test_labels_of_the_image_follow_its_configs_and_policies(install):
    installed = install(gpus="2xa100-sxm4-40gb")
    entries = [{"devices": [0], "mig-enabled": True, "mig-devices": {"2g.10gb": 3}}]
    wish(installed, label="thirds", configs={"thirds": entries}, unlisted="disable")
    installed.node.enable(1)
    assert booted(installed).failures == ()
    gpus = installed.read().gpus
    assert [(gpu.mode_current, len(gpu.instances)) for gpu in gpus] == [(True, 3), (False, 0)]


def test_a_machine_with_another_number_of_gpus_than_the_image_expects_is_left_alone(install):
    installed = install(gpus="2xa100-sxm4-40gb")
    wish(installed, label="all-1g.5gb", expected_gpus=8)
    with pytest.raises(WishError, match="this node has 2 GPUs, expected_gpus says 8"):
        booted(installed)
    assert installed.simulator.writes() == []


def test_what_was_proven_counts_more_than_what_the_image_wants(install):
    installed = install("all-3g.20gb")
    wish(installed, label="all-1g.5gb")
    assert booted(installed).source == "wanted.json"
    assert len(layout_of(installed)) == 2


def test_an_image_that_wants_nothing_of_these_gpus_remembers_nothing(install):
    installed = install(gpus="1xa30-24gb")
    wish(installed, label_by_gpu={"NVIDIA H100 80GB HBM3": "all-1g"})
    assert booted(installed).failures == ()
    assert state.read_wanted(installed.places) is None


# --- the command ----------------------------------------------------------------------------------------------------


def test_the_command_says_what_it_did_and_status_says_nothing_more(install):
    installed = install("all-balanced", gpus="2xh100-sxm5-80gb")
    ran = command(installed, "boot", "--wait", "0")
    assert (ran.status, ran.err) == (cli.OK, "")
    assert ran.out.splitlines()[0] == "wanted.json is restored: 2 GPUs changed."
    assert ran.out.splitlines()[1].startswith("now    GPU 0  |1g.10gb")
    report = command(installed, "status", "--json").report
    assert (report["boot"]["exit_status"], report["boot"]["result"], report["persisted"]) == (0, "changed", "match")
    again = command(installed, "boot", "--wait", "0")
    assert again.out == "wanted.json is followed: nothing had to be changed.\n"
    assert "last boot" not in command(installed, "status").out


def test_a_boot_that_failed_for_one_gpu_is_5_and_status_remembers_it(install):
    installed = install("all-1g.5gb", gpus="2xa100-sxm4-40gb")
    installed.simulator.fault("nvmlDeviceCreateGpuInstanceWithPlacement", code="UNKNOWN", gpu=1)
    ran = command(installed, "boot", "--wait", "0", "--json")
    assert (ran.status, ran.report["result"], ran.report["changed"]) == (cli.NOT_AS_BEFORE, "incomplete", True)
    (failure,) = ran.report["failures"]
    assert failure["gpu"].startswith("GPU 1 (")
    installed.simulator.clear_faults()
    lines = command(installed, "status").out.splitlines()
    assert any(line.startswith("The last boot failed (20") and "on GPU 1 (" in line for line in lines)


def test_a_broken_record_is_3_with_the_cause_and_nothing_is_touched(install):
    installed = install("all-1g.5gb")
    Path(installed.places.state, "wanted.json").write_text("{")
    ran = command(installed, "boot", "--wait", "0")
    assert ran.status == cli.REFUSED
    assert "wanted.json is damaged (it is not JSON" in ran.out
    assert "mv " in ran.out
    assert installed.simulator.calls() == []
    assert "wanted.json is damaged" in command(installed, "status").out


def test_a_broken_record_is_not_replaced_by_the_one_before(install):
    installed = install("all-1g.5gb")
    booted(installed)
    assert installed.change(label="all-3g.20gb").error is None
    Path(installed.places.state, "wanted.json").write_bytes(b"")
    reboot(installed)
    assert command(installed, "boot", "--wait", "0", "--fallback-previous").status == cli.REFUSED
    assert layout_of(installed) == []


def test_a_driver_that_does_not_come_is_6(install):
    installed = install("all-1g.5gb")
    installed.simulator.fault("nvmlInit", code="DRIVER_NOT_LOADED")
    ran = command(installed, "boot", "--wait", "0")
    assert ran.status == cli.CANNOT_TELL
    assert "DRIVER_NOT_LOADED" in ran.out


def test_a_node_that_another_run_changes_is_7_after_the_time_is_over(install):
    installed = install("all-1g.5gb")
    with state.Lock.acquire(installed.places, "txid", "alice", "a change", 0.0):
        ran = command(installed, "boot", "--wait", "0")
    assert ran.status == cli.LOCKED
    assert "alice" in ran.out
    assert layout_of(installed) == []


def test_a_mode_that_waits_is_8(install):
    installed = install("all-1g.5gb")
    destroy_everything(installed)
    installed.node.in_session(lambda session: session.set_mig_mode(0, False))
    with installed.simulator.occupy(gpu=0, kind="client"):
        ran = command(installed, "boot", "--wait", "0")
    assert ran.status == cli.RESET_OR_REBOOT


def test_status_says_what_the_image_wants(install):
    installed = install()
    wish(installed, label="all-1g", label_by_gpu={"NVIDIA A30": "all-disabled"})
    ran = command(installed, "status")
    assert "Next boot: what the image wants, label all-1g (others for NVIDIA A30)." in ran.out
    assert command(installed, "status", "--json").report["wish"]["label"] == "all-1g"


# --- what it costs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("board", ["a100-sxm4-80gb", "h100-sxm5-80gb"])
def test_eight_gpus_take_less_than_a_second_beside_the_drivers_own_time(make_node, tmp_path, board):
    installed = Installation(make_node(f"8x{board}"), tmp_path / "state")
    assert installed.change(label="all-1g").error is None
    reboot(installed)
    for changed in (True, False):
        started = time.monotonic()
        assert booted(installed).changed is changed
        assert time.monotonic() - started < 5, "a second on a machine that does nothing else"
