# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Each way in which the driver can fail: its name, the call, the GPU, and what to do next."""

from __future__ import annotations

import os
import subprocess
import sys
import types
import zipfile

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import driver, transaction
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import DriverError, MigError, Placement
from ansible_collections.gpufleet.mig.tests.engine.helpers import NOBODY

ONE_G = 19


def failure_of(node, function, **options):
    """The DriverError that a function raises in a child which sees the node."""

    def caught():
        try:
            function()
        except DriverError as error:
            return error
        return None

    error = node.call(caught, **options)
    assert error is not None, "nothing failed"
    return error


def read_node():
    with driver.Session() as session:
        return session.read_node()


# --- before there is a session ---------------------------------------------------------------------------------------


def without_binding():
    sys.modules["pynvml"] = None  # type: ignore[assignment]  # Python's own way to say that it cannot be imported
    read_node()


def with_an_ancient_binding():
    sys.modules["pynvml"] = types.ModuleType("pynvml")
    read_node()


def without_library():
    import pynvml

    def not_found(name):
        raise OSError(f"{name}: cannot open shared object file")

    pynvml.CDLL = not_found
    read_node()


def without_driver():
    del os.environ["NVMLSIM_STATE"]
    read_node()


@pytest.mark.parametrize(
    ("situation", "fault", "call", "error", "next_action"),
    [
        (without_binding, None, "import pynvml", "BINDING_MISSING", "install the Python package nvidia-ml-py"),
        (with_an_ancient_binding, None, "import pynvml", "BINDING_MISSING", "install the Python package nvidia-ml-py"),
        (without_library, None, "nvmlInit", "LIBRARY_NOT_FOUND", "install the NVIDIA driver"),
        (without_driver, None, "nvmlInit", "DRIVER_NOT_LOADED", "modprobe nvidia"),
        (read_node, "LIB_RM_VERSION_MISMATCH", "nvmlInit", "LIB_RM_VERSION_MISMATCH", "reboot, or unload the module"),
        (read_node, "NO_PERMISSION", "nvmlInit", "NO_PERMISSION", "run as root"),
        (read_node, "UNKNOWN", "nvmlInit", "UNKNOWN", "'dmesg'"),
    ],
)
def test_a_session_that_cannot_be_opened_says_why_and_what_to_do(make_node, situation, fault, call, error, next_action):
    node = make_node()
    if fault:
        node.simulator.fault("nvmlInitWithFlags", code=fault)
    failure = failure_of(node, situation)

    assert (failure.error, failure.details["call"]) == (error, call)
    assert next_action in str(failure)
    assert str(failure).count("\n") == 0


def test_a_session_that_fails_after_init_is_closed_again(make_node):
    node = make_node()
    node.simulator.fault("nvmlSystemGetDriverVersion", code="UNKNOWN")

    assert failure_of(node, read_node).details["call"] == "nvmlSystemGetDriverVersion"
    counts = node.simulator.counts()
    assert counts["nvmlShutdown"] == counts["nvmlInitWithFlags"] == 1


def test_every_failure_class_has_a_remedy_of_its_own():
    classes = [
        "BINDING_MISSING",
        "LIBRARY_NOT_FOUND",
        "DRIVER_NOT_LOADED",
        "LIB_RM_VERSION_MISMATCH",
        "NO_PERMISSION",
        "GPU_IS_LOST",
        "FUNCTION_NOT_FOUND",
        "DRIVER_TOO_OLD",
        "IN_USE",
        "INSUFFICIENT_RESOURCES",
        "RESET_REQUIRED",
        "UNKNOWN",
    ]
    assert len({driver.remedy(name) for name in classes}) == len(classes)


NEEDED = "nvmlDeviceGetMPSComputeRunningProcesses_v3"
LOADS = """
import os, sys
from ansible_collections.gpufleet.mig.plugins.module_utils.engine import driver
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import DriverError

def load(*places, trusted=()):
    try:
        print(driver.load_binding(*places, trusted=trusted).nvmlDeviceGetMPSComputeRunningProcesses_v3)
    except DriverError as error:
        print(error.error, error)

"""


def loading(calls, *arguments):
    """What each ``load(…)`` says, in a Python of its own: the binding's mark, or the error and its sentence."""
    done = subprocess.run(
        [sys.executable, "-c", LOADS + calls, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    return done.stdout.splitlines()


def binding_folder(place, content="from the folder"):
    place.mkdir()
    place.chmod(0o755)
    (place / "pynvml.py").write_text(f"{NEEDED} = {content!r}\n")
    (place / "pynvml.py").chmod(0o644)
    return place


def binding_zip(place):
    with zipfile.ZipFile(place, "w") as file:
        file.writestr("pynvml.py", f"{NEEDED} = 'from the zip'\n")
    return place


def given_to_a_stranger(*paths):
    """Paths that root does not own; where the tests do not run as root, none of ours is."""
    for path in paths if os.geteuid() == 0 else ():
        os.chown(path, 65534, 65534)


def test_the_binding_is_taken_from_the_folder_that_was_given(tmp_path):
    assert loading("load(sys.argv[1])", binding_folder(tmp_path / "binding")) == ["from the folder"]


def test_the_binding_is_taken_from_a_zip_file(tmp_path):
    assert loading("load(sys.argv[1])", binding_zip(tmp_path / "binding.zip")) == ["from the zip"]


def test_a_place_that_does_not_exist_is_passed_over(tmp_path):
    folder = binding_folder(tmp_path / "binding")
    assert loading("load('/nowhere', sys.argv[1])", folder) == ["from the folder"]


def test_what_came_with_the_task_goes_before_what_lies_on_the_node(tmp_path):
    folder, archive = binding_folder(tmp_path / "binding"), binding_zip(tmp_path / "binding.zip")
    assert loading("load(sys.argv[1], trusted=[sys.argv[2]])", folder, archive) == ["from the zip"]


DAMAGED = {
    "garbage": (b"garbage(((\n", "SyntaxError"),
    "half a line": (b"def nvmlInit(\n", "SyntaxError"),
    "zeros": (b"\x00" * 100, "Error"),
    "no text": (b"\xff\xfe\n", "SyntaxError"),
    "fails": (b"raise RuntimeError('broken')\n", "RuntimeError: broken"),
    "exits": (b"import sys; sys.exit(3)\n", "SystemExit: 3"),
    "many lines": (b"raise ValueError('line\\n' * 1000)\n", "ValueError: line?"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_binding_is_a_missing_one_that_names_file_error_and_next_action(tmp_path, damage):
    content, reason = DAMAGED[damage]
    folder = binding_folder(tmp_path / "binding")
    (folder / "pynvml.py").write_bytes(content)
    (said,) = loading("load(sys.argv[1])", folder)

    assert said.startswith("BINDING_MISSING ")
    for part in (str(folder / "pynvml.py"), reason, "remove it", "install the Python package nvidia-ml-py"):
        assert part in said
    assert len(said) < 700


@pytest.mark.parametrize("damage", [*DAMAGED, "empty"])
def test_after_a_damaged_binding_the_next_one_wins(tmp_path, damage):
    folder, archive = binding_folder(tmp_path / "binding"), binding_zip(tmp_path / "binding.zip")
    (folder / "pynvml.py").write_bytes(DAMAGED[damage][0] if damage in DAMAGED else b"")
    calls = "load(sys.argv[1]); print(sys.argv[1] in sys.path); load(sys.argv[1], trusted=[sys.argv[2]])"
    first, still_there, second = loading(calls, folder, archive)

    assert first.startswith("BINDING_MISSING ")
    assert (still_there, second) == ("False", "from the zip")


def test_a_damaged_binding_that_was_replaced_is_used(tmp_path):
    folder = binding_folder(tmp_path / "binding")
    (folder / "pynvml.py").write_text("garbage(((\n")
    replaced = f"load(sys.argv[1]); open(sys.argv[1] + '/pynvml.py', 'w').write({NEEDED!r} + ' = 1'); load(sys.argv[1])"
    assert loading(replaced, folder)[1] == "1"


AS_ROOT = "os.geteuid = lambda: 0; "


@pytest.mark.parametrize("stranger", ["folder", "file", "archive", "cache", "folder around it"])
def test_root_does_not_import_a_binding_that_belongs_to_somebody_else(tmp_path, stranger):
    folder = place = binding_folder(tmp_path / "binding")
    cache = folder / "__pycache__"
    cache.mkdir(mode=0o755)
    archive = binding_zip(tmp_path / "binding.zip")
    path = {
        "folder": folder,
        "file": folder / "pynvml.py",
        "archive": archive,
        "cache": cache,
        "folder around it": tmp_path,
    }[stranger]
    if stranger == "archive":
        place = archive
    given_to_a_stranger(path)
    (said,) = loading(AS_ROOT + "load(sys.argv[1])", place)

    assert said.startswith(f"BINDING_MISSING The NVML binding in {place} is not used")
    assert "(owner " in said
    assert "mig_config installs its own" in said
    if os.geteuid() == 0:
        assert f"others can write to {path} " in said
        assert ("give" if stranger == "folder around it" else f"remove {place}") in said


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777])
@pytest.mark.parametrize("name", ["", "pynvml.py"])
def test_root_does_not_import_a_binding_that_others_can_write_to(tmp_path, name, mode):
    folder = binding_folder(tmp_path / "binding")
    (folder / name).chmod(mode)
    (said,) = loading(AS_ROOT + "load(sys.argv[1])", folder)

    assert said.startswith(f"BINDING_MISSING The NVML binding in {folder} is not used")


def test_root_uses_what_came_with_the_task_whoever_owns_it_and_not_the_unsafe_folder(tmp_path):
    folder, archive = binding_folder(tmp_path / "binding"), binding_zip(tmp_path / "binding.zip")
    given_to_a_stranger(tmp_path, folder, archive)
    calls = AS_ROOT + "load(sys.argv[1], trusted=[sys.argv[2]]); print(sys.argv[1] in sys.path)"

    assert loading(calls, folder, archive) == ["from the zip", "False"]


def test_other_users_than_root_import_what_is_their_own(tmp_path):
    folder = binding_folder(tmp_path / "binding")
    given_to_a_stranger(folder, folder / "pynvml.py")
    assert loading("os.geteuid = lambda: 65534; load(sys.argv[1])", folder) == ["from the folder"]


# --- one operation ---------------------------------------------------------------------------------------------------


def in_session(operation):
    def with_session():
        with driver.Session() as session:
            session.read_node()
            operation(session)

    return with_session


OPERATIONS = [
    ("nvmlDeviceSetMigMode", "nvmlDeviceSetMigMode", lambda s: s.set_mig_mode(1, False)),
    (
        "nvmlDeviceCreateGpuInstanceWithPlacement",
        "nvmlDeviceCreateGpuInstanceWithPlacement",
        lambda s: s.create_gpu_instance(1, ONE_G, Placement(6, 1)),
    ),
    ("nvmlGpuInstanceDestroy", "nvmlGpuInstanceDestroy", lambda s: s.destroy_gpu_instance(1, 7)),
    (
        "nvmlGpuInstanceCreateComputeInstanceWithPlacement",
        "nvmlGpuInstanceCreateComputeInstanceWithPlacement",
        lambda s: s.create_compute_instance(1, 7, 1, Placement(0, 1)),
    ),
    ("nvmlComputeInstanceDestroy", "nvmlComputeInstanceDestroy", lambda s: s.destroy_compute_instance(1, 8, 0)),
    ("nvmlDeviceGetMigMode", "nvmlDeviceGetMigMode", lambda s: s.read_mode(1)),
]


@pytest.mark.parametrize(("function", "call", "operation"), OPERATIONS)
@pytest.mark.parametrize("code", ["NO_PERMISSION", "GPU_IS_LOST", "FUNCTION_NOT_FOUND", "IN_USE", "UNKNOWN"])
def test_a_failed_operation_names_call_error_gpu_and_next_action(make_node, function, call, operation, code):
    node = make_node("2xa100-sxm4-40gb")
    node.enable(1)
    node.create(1, [("1g.5gb", 0, []), ("1g.5gb", 1, [(0, 1)])])

    def after_reading(session):
        node.simulator.fault(function, code=code)
        operation(session)

    failure = failure_of(node, in_session(after_reading))
    gpu = node.simulator.describe()["gpus"][1]
    assert failure.details == {
        "call": call,
        "error": code,
        "gpu": 1,
        "pci_bus_id": gpu["pci"].upper(),
        "uuid": gpu["uuid"],
    }
    for part in (call, code, "GPU 1", gpu["pci"].upper(), gpu["uuid"], driver.remedy(code)):
        assert part in str(failure)


def test_an_instance_that_does_not_exist_is_not_found(make_node):
    node = make_node()
    node.enable(0)
    assert failure_of(node, in_session(lambda s: s.destroy_gpu_instance(0, 9))).error == "NOT_FOUND"
    assert failure_of(node, in_session(lambda s: s.create_compute_instance(0, 9, 1, None))).error == "NOT_FOUND"


def test_a_compute_instance_that_the_gpu_instance_does_not_offer_is_refused_with_what_it_offers(make_node):
    node = make_node()
    node.enable(0)
    node.create(0, [("2g.10gb", 0, [])])
    failure = failure_of(node, in_session(lambda s: s.create_compute_instance(0, 3, 3, Placement(0, 3))))

    assert failure.error == "NOT_SUPPORTED"
    assert "of 3 slices (it offers: 1, 2)" in str(failure)


def test_without_root_nothing_is_written_and_the_message_names_what_it_takes(make_shared_node):
    node = make_shared_node()
    failure = failure_of(node, in_session(lambda s: s.set_mig_mode(0, True)), **NOBODY)

    assert failure.error == "NO_PERMISSION"
    assert "/dev/nvidia-caps/nvidia-cap1" in str(failure)
    assert node.state()[0]["modes"] == (0, 0)


# --- what is not supported -------------------------------------------------------------------------------------------


def old_driver_session():
    import pynvml

    pynvml.nvmlSystemGetDriverVersion = lambda: "470.57.02"
    return driver.Session()


def test_a_driver_older_than_supported_is_named_and_the_rest_is_still_read(make_node):
    def read():
        with old_driver_session() as session:
            return session.read_node()

    read_node_ = make_node().call(read)
    assert read_node_.driver_version == "470.57.02"
    (gpu,) = read_node_.gpus
    assert gpu.name == "NVIDIA A100-SXM4-40GB"
    assert [(problem.error, problem.remedy) for problem in gpu.problems] == [
        ("DRIVER_TOO_OLD", "drivers from 525 on are supported: update the NVIDIA driver")
    ]


@pytest.mark.parametrize(
    ("version", "too_old"),
    [("450.51.06", True), ("524.99", True), ("525.60.13", False), ("580.95.05", False), ("", False), ("odd", False)],
)
def test_drivers_from_525_on_are_supported(version, too_old):
    assert driver.is_too_old(version) is too_old


def test_a_change_on_a_driver_older_than_supported_is_refused_before_the_first_write(make_node):
    node = make_node()
    before, plan, wanted = node.plan(label="all-1g.5gb")

    with pytest.raises(MigError, match="drivers from 525 on are supported"):
        transaction.require_possible(before._replace(driver_version="470.57.02"), plan)


@pytest.mark.parametrize("mode", ["vgpu", "host-vgpu", "host-vsga"])
def test_a_change_of_a_vgpu_host_or_guest_is_refused_before_the_first_write(make_node, mode):
    node = make_node()
    before, plan, wanted = node.plan(label="all-1g.5gb")
    virtual = before._replace(gpus=(before.gpus[0]._replace(virtualization=mode),))

    with pytest.raises(MigError, match="vGPU hosts and guests is not supported") as refusal:
        node.carry_out((virtual, plan, wanted))
    assert refusal.value.details["gpu"] == 0
    assert node.simulator.writes() == []
