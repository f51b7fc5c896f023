# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the library exports, what it checks before it answers, and how it differs from driver to driver."""

from __future__ import annotations

import ctypes
import inspect
import os
import pathlib
import re
import subprocess
import sys

import nvml_client as client
import pynvml as nv
import pytest

from nvmlsim.build import LIBRARY_NAME, OLDEST_BRANCH, read_symbols, source_folder

NEWEST = "615"
DRIVERS = ["525", "535", "545", "550", "555", "560", "565", "570", "575", "580", "590", "595", "610"]
PYNVML_NAMES = sorted(set(re.findall(r'_nvmlGetFunctionPointer\("(\w+)"\)', inspect.getsource(nv))))
GO_NAMES = [
    line
    for line in pathlib.Path(__file__).with_name("go_nvml_names.txt").read_text(encoding="utf-8").split("\n")
    if line and not line.startswith("#")
]
SYMBOLS = read_symbols(source_folder())
MIG_NAMES = [
    "nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags", "nvmlShutdown", "nvmlErrorString",
    "nvmlSystemGetDriverVersion", "nvmlSystemGetNVMLVersion", "nvmlSystemGetCudaDriverVersion",
    "nvmlSystemGetCudaDriverVersion_v2", "nvmlDeviceGetCount", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByPciBusId", "nvmlDeviceGetHandleByPciBusId_v2",
    "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetPciInfo", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetMigMode", "nvmlDeviceSetMigMode", "nvmlDeviceGetGpuInstanceProfileInfo",
    "nvmlDeviceGetGpuInstanceProfileInfoV", "nvmlDeviceGetGpuInstancePossiblePlacements",
    "nvmlDeviceGetGpuInstancePossiblePlacements_v2", "nvmlDeviceGetGpuInstanceRemainingCapacity",
    "nvmlDeviceCreateGpuInstance", "nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceDestroy",
    "nvmlDeviceGetGpuInstances", "nvmlDeviceGetGpuInstanceById", "nvmlGpuInstanceGetInfo",
    "nvmlGpuInstanceGetComputeInstanceProfileInfo", "nvmlGpuInstanceGetComputeInstanceProfileInfoV",
    "nvmlGpuInstanceGetComputeInstanceRemainingCapacity", "nvmlGpuInstanceGetComputeInstancePossiblePlacements",
    "nvmlGpuInstanceCreateComputeInstance", "nvmlGpuInstanceCreateComputeInstanceWithPlacement",
    "nvmlComputeInstanceDestroy", "nvmlGpuInstanceGetComputeInstances", "nvmlGpuInstanceGetComputeInstanceById",
    "nvmlComputeInstanceGetInfo", "nvmlComputeInstanceGetInfo_v2", "nvmlDeviceIsMigDeviceHandle",
    "nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId", "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetDeviceHandleFromMigDeviceHandle",
    "nvmlDeviceGetAttributes", "nvmlDeviceGetAttributes_v2", "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlEventSetCreate", "nvmlEventSetFree", "nvmlEventSetWait", "nvmlEventSetWait_v2", "nvmlDeviceRegisterEvents",
]  # fmt: skip


def missing(names):
    library = ctypes.CDLL("libnvidia-ml.so.1")
    return [name for name in names if not hasattr(library, name)]


def test_the_lists_of_names_are_those_of_real_clients():
    assert len(PYNVML_NAMES) > 350
    assert len(GO_NAMES) == 413


@pytest.mark.parametrize("names", [PYNVML_NAMES, GO_NAMES], ids=["nvidia-ml-py", "go-nvml"])
def test_no_client_dies_for_want_of_a_name(node, names):
    assert node(driver=NEWEST).call(missing, names) == []


@pytest.mark.parametrize("driver", DRIVERS)
def test_every_mig_function_is_there_with_and_without_version(node, driver):
    gpus = "1xa100-sxm4-40gb"
    assert node(gpus, driver=driver).call(missing, MIG_NAMES) == []


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_driver_lacks_what_came_after_it(node, driver):
    simulator = node(driver=driver)
    later = [symbol.name for symbol in SYMBOLS if symbol.since > int(driver)]
    earlier = [symbol.name for symbol in SYMBOLS if symbol.since <= int(driver)]
    assert simulator.call(missing, later) == later
    assert simulator.call(missing, earlier) == []


def test_profile_by_id_is_not_in_old_drivers(node):
    def ask():
        handle = client.mig_gpu()
        return client.code(nv.nvmlDeviceGetGpuInstanceProfileInfoById, handle, 19)

    assert node(driver="535").call(ask) == "FUNCTION_NOT_FOUND"
    assert node(driver="580").call(ask) == "SUCCESS"


def test_every_other_name_answers_not_supported(node):
    def answers():
        nv.nvmlInit()
        return [client.raw(name) for name in ("nvmlDeviceGetBoardId", "nvmlUnitGetCount", "nvmlDeviceGetSamples")]

    assert node().call(answers) == [nv.NVML_ERROR_NOT_SUPPORTED] * 3


def test_the_library_is_found_by_the_dynamic_linker_under_its_own_name(node):
    simulator = node()
    headers = subprocess.run(
        ["readelf", "-d", str(simulator.library / LIBRARY_NAME)], capture_output=True, text=True, check=True
    )
    assert f"soname: [{LIBRARY_NAME}]" in headers.stdout
    code = "import pynvml; pynvml.nvmlInit(); print(pynvml.nvmlDeviceGetCount())"
    assert simulator.run([sys.executable, "-c", code]).stdout == "1\n"


# ---- driver versions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("driver", "version", "nvml", "cuda"),
    [
        ("525", "525.147.05", "12.525.147.05", 12000),
        ("535.161.08", "535.161.08", "12.535.161.08", 12020),
        ("570", "570.172.08", "12.570.172.08", 12080),
        ("580.65.06", "580.65.06", "13.580.65.06", 13000),
        ("610", "610.43.02", "13.610.43.02", 13030),
    ],
)
def test_versions(node, driver, version, nvml, cuda):
    def read():
        nv.nvmlInit()
        return nv.nvmlSystemGetDriverVersion(), nv.nvmlSystemGetNVMLVersion(), nv.nvmlSystemGetCudaDriverVersion()

    assert node(driver=driver).call(read) == (version, nvml, cuda)


@pytest.mark.parametrize("driver", [driver for driver in DRIVERS if driver != "545"])
def test_drivers_up_to_535_list_no_profiles_while_mig_is_off(node, driver):
    def ask():
        handle = client.gpu()
        off = client.code(nv.nvmlDeviceGetGpuInstanceProfileInfo, handle, 0)
        nv.nvmlDeviceSetMigMode(handle, 1)
        return off, client.code(nv.nvmlDeviceGetGpuInstanceProfileInfo, handle, 0)

    expected = "NOT_SUPPORTED" if int(driver) <= 535 else "SUCCESS"
    assert node(driver=driver).call(ask) == (expected, "SUCCESS")


def test_field_199_says_whether_profiles_can_be_listed_while_mig_is_off(node):
    def field(number):
        return nv.nvmlDeviceGetFieldValues(client.gpu(), [number])[0]

    def able(number):
        value = field(number)
        return value.nvmlReturn == nv.NVML_SUCCESS and value.value.uiVal == 1

    assert not node(driver="535").call(able, 199)
    assert node(driver="580").call(able, 199)


def test_field_184_says_whether_the_mode_changes_without_a_reset(node):
    def able():
        value = nv.nvmlDeviceGetFieldValues(client.gpu(), [184])[0]
        return value.nvmlReturn == nv.NVML_SUCCESS and value.value.uiVal == 1

    assert not node("1xa100-sxm4-40gb").call(able)
    assert node("1xh100-sxm5-80gb").call(able)


def test_the_walk_over_profiles_ends_where_the_driver_knows_no_more(node):
    def first_unknown():
        handle = client.mig_gpu()
        return next(
            enum
            for enum in range(256)
            if client.code(nv.nvmlDeviceGetGpuInstanceProfileInfo, handle, enum) == "INVALID_ARGUMENT"
        )

    ends = [node(driver=driver).call(first_unknown) for driver in ("525", "550", "580", "610")]
    assert ends == sorted(ends)
    assert ends[0] >= 10  # the double-memory profile is number 9
    assert ends[-1] <= 18


# ---- versions of structs, sizes of buffers -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("struct", "size"),
    [
        (nv.c_nvmlGpuInstanceProfileInfo_t, 48),
        (nv.c_nvmlGpuInstanceProfileInfo_v2_t, 152),
        (nv.c_nvmlComputeInstanceProfileInfo_t, 36),
        (nv.c_nvmlComputeInstanceProfileInfo_v2_t, 136),
        (nv.c_nvmlGpuInstanceInfo_t, 24),
        (nv.c_nvmlComputeInstanceInfo_t, 32),
        (nv.c_nvmlDeviceAttributes, 40),
        (nv.c_nvmlProcessInfo_v2_t, 24),
        (nv.nvmlPciInfo_t, 68),
    ],
)
def test_the_binding_has_the_structs_that_the_library_was_written_for(struct, size):
    assert ctypes.sizeof(struct) == size


V2, V3, C_V2, C_V3 = 0x02000098, 0x03000098, 0x02000088, 0x0300008C


def profile_words(version):
    """GPU instance profile 0 (1g) as 152 bytes, read with this version word."""
    buffer = (ctypes.c_ubyte * 256)()
    ctypes.c_uint32.from_buffer(buffer).value = version
    library = ctypes.CDLL("libnvidia-ml.so.1")
    result = library.nvmlDeviceGetGpuInstanceProfileInfoV(client.mig_gpu(), 0, ctypes.byref(buffer))
    return result, bytes(buffer)


def number(data, offset, size=4):
    return int.from_bytes(data[offset : offset + size], "little")


def test_versions_two_and_three_of_the_profile_differ_in_layout_not_in_size(node):
    simulator = node("1xrtx-pro-6000-server")
    result, two = simulator.call(profile_words, V2)
    assert result == nv.NVML_SUCCESS
    assert number(two, 4) == 14
    assert number(two, 48, 8) == 24192
    assert two[56:].split(b"\0")[0] == b"MIG 1g.24gb"
    result, three = simulator.call(profile_words, V3)
    assert result == nv.NVML_SUCCESS
    assert number(three, 4) == 14
    assert number(three, 40, 8) == 24192
    assert three[48:].split(b"\0")[0] == b"MIG 1g.24gb"
    assert number(three, 144) == 0
    assert two[152:] == three[152:] == bytes(104)


@pytest.mark.parametrize("version", [0, V2 + 1, 0x09000098, C_V2])
def test_another_version_word_is_refused(node, version):
    assert node().call(profile_words, version)[0] == nv.NVML_ERROR_INVALID_ARGUMENT
    other = node(assume={"struct_version_code": "ARGUMENT_VERSION_MISMATCH"})
    assert other.call(profile_words, version)[0] == nv.NVML_ERROR_ARGUMENT_VERSION_MISMATCH


def test_versions_of_the_compute_profile(node):
    def words(version):
        buffer = (ctypes.c_ubyte * 256)()
        ctypes.c_uint32.from_buffer(buffer).value = version
        gi = client.create(client.mig_gpu(), 9)
        library = ctypes.CDLL("libnvidia-ml.so.1")
        ask = library.nvmlGpuInstanceGetComputeInstanceProfileInfoV
        return ask(gi, 2, 0, ctypes.byref(buffer)), bytes(buffer)

    for version, end in ((C_V2, 136), (C_V3, 140)):
        result, data = node().call(words, version)
        assert result == nv.NVML_SUCCESS
        assert (number(data, 4), number(data, 8)) == (2, 3)
        assert data[40:].split(b"\0")[0] == b"MIG 3g.20gb"
        assert data[end:] == bytes(256 - end)
    assert node().call(words, V2)[0] == nv.NVML_ERROR_INVALID_ARGUMENT


def test_the_unversioned_structs_stay_within_their_size(node):
    def read():
        handle = client.mig_gpu()
        gi_buffer, ci_buffer = (ctypes.c_ubyte * 256)(), (ctypes.c_ubyte * 256)()
        library = ctypes.CDLL("libnvidia-ml.so.1")
        library.nvmlDeviceGetGpuInstanceProfileInfo(handle, 2, ctypes.byref(gi_buffer))
        gi = client.create(handle, 9)
        library.nvmlGpuInstanceGetComputeInstanceProfileInfo(gi, 2, 0, ctypes.byref(ci_buffer))
        return bytes(gi_buffer), bytes(ci_buffer)

    gi, ci = node().call(read)
    assert (number(gi, 0), number(gi, 8), number(gi, 12), number(gi, 40, 8)) == (9, 3, 2, 20096)
    assert (number(ci, 0), number(ci, 4)) == (2, 3)
    assert gi[48:] == bytes(208)
    assert ci[36:] == bytes(220)


def test_a_wrong_version_of_the_memory_struct_is_a_version_mismatch(node):
    def ask(version):
        memory = nv.c_nvmlMemory_v2_t()
        memory.version = version
        return ctypes.CDLL("libnvidia-ml.so.1").nvmlDeviceGetMemoryInfo_v2(client.gpu(), ctypes.byref(memory))

    assert node().call(ask, 0x02000028) == nv.NVML_SUCCESS
    assert node().call(ask, 0x03000028) == nv.NVML_ERROR_ARGUMENT_VERSION_MISMATCH


def test_memory_of_both_versions_agrees(node):
    def read():
        handle = client.gpu()
        both = nv.nvmlDeviceGetMemoryInfo(handle), nv.nvmlDeviceGetMemoryInfo(handle, version=nv.nvmlMemory_v2)
        return [(memory.total, memory.free, memory.used) for memory in both]

    one, two = node().call(read)
    assert one[0] == two[0]
    assert one[1] == two[1]
    assert one[2] > two[2]  # includes what is reserved


@pytest.mark.parametrize(
    "name", ["nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlSystemGetDriverVersion", "nvmlSystemGetNVMLVersion"]
)
def test_a_buffer_that_is_too_small_is_said_to_be(node, name):
    def ask():
        handle = client.gpu()
        arguments = [handle] if "Device" in name else []
        buffer = ctypes.create_string_buffer(96)
        return client.raw(name, *arguments, buffer, 5), client.raw(name, *arguments, buffer, 96)

    assert node().call(ask) == (nv.NVML_ERROR_INSUFFICIENT_SIZE, nv.NVML_SUCCESS)


# ---- session -------------------------------------------------------------------------------------------------------


def test_sessions_are_counted(node):
    def ends():
        first = client.code(nv.nvmlDeviceGetCount)
        nv.nvmlInit()
        nv.nvmlInit()
        codes = []
        for _ in range(3):
            codes.append((client.code(nv.nvmlDeviceGetCount), client.code(nv.nvmlShutdown)))
        return first, codes

    first, codes = node().call(ends)
    assert first == "UNINITIALIZED"
    assert codes == [("SUCCESS", "SUCCESS"), ("SUCCESS", "SUCCESS"), ("UNINITIALIZED", "UNINITIALIZED")]


@pytest.mark.parametrize("name", ["nvmlInit", "nvmlInit_v2"])
def test_every_way_to_initialise_works(node, name):
    def start():
        ctypes.CDLL("libnvidia-ml.so.1")
        return client.raw(name), client.raw("nvmlInitWithFlags", 1), client.raw("nvmlShutdown")

    assert node().call(start) == (0, 0, 0)


def test_texts_and_the_version_of_nvml_need_no_session(node):
    def ask():
        library = ctypes.CDLL("libnvidia-ml.so.1")
        library.nvmlErrorString.restype = ctypes.c_char_p
        texts = [library.nvmlErrorString(value).decode() for value in (0, 3, 4, 6, 9, 16, 19, 23)]
        buffer = ctypes.create_string_buffer(80)
        return texts, library.nvmlSystemGetNVMLVersion(buffer, 80), buffer.value.decode()

    texts, result, version = node().call(ask)
    assert result == 0
    assert version == "13.580.95.05"
    assert texts == [
        "Success",
        "Not Supported",
        "Insufficient Permissions",
        "Not Found",
        "Driver Not Loaded",
        "GPU requires reset",
        "In use by another client",
        "Insufficient Resources",
    ]


@pytest.mark.parametrize("state", [None, "/nowhere/node"])
def test_without_a_node_the_driver_is_not_loaded(node, state):
    simulator = node()
    env = simulator.env()
    del env["NVMLSIM_STATE"]
    if state:
        env["NVMLSIM_STATE"] = state
    code = "import pynvml, sys\ntry: pynvml.nvmlInit()\nexcept pynvml.NVMLError as error: print(error.value)"
    assert simulator.run([sys.executable, "-c", code], env=env).stdout == f"{nv.NVML_ERROR_DRIVER_NOT_LOADED}\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("00000000:0F:00.0", 1),
        ("00000000:0f:00.0", 1),
        ("0000:0F:00.0", 1),
        ("0F:00.0", 1),
        ("0000:47:00.0", 2),
        ("0000:48:00.0", "NOT_FOUND"),
        ("0001:0F:00.0", "NOT_FOUND"),
    ],
)
def test_gpus_by_pci_address_in_every_spelling(node, text, expected):
    def find():
        nv.nvmlInit()
        try:
            return nv.nvmlDeviceGetIndex(nv.nvmlDeviceGetHandleByPciBusId(text.encode()))
        except nv.NVMLError as error:
            return client.NAMES[error.value]

    assert node("3xa100-sxm4-40gb").call(find) == expected


def test_gpus_by_uuid_and_by_index(node):
    def find():
        second = client.gpu(1)
        uuid = nv.nvmlDeviceGetUUID(second)
        other = uuid[:-4] + ("0000" if uuid[-4:] != "0000" else "1111")
        return (
            nv.nvmlDeviceGetIndex(nv.nvmlDeviceGetHandleByUUID(uuid.encode())),
            client.code(nv.nvmlDeviceGetHandleByUUID, other.encode()),
            client.code(nv.nvmlDeviceGetHandleByUUID, b"nonsense"),
            client.code(nv.nvmlDeviceGetHandleByIndex, 2),
        )

    assert node("2xa30-24gb").call(find) == (1, "NOT_FOUND", "INVALID_ARGUMENT", "INVALID_ARGUMENT")


def test_gpus_of_one_node_meet_in_its_numa_node(node):
    """NVIDIA's device plugin asks for every pair of GPUs, of whatever boards, before a pod gets two of them."""

    def ask():
        gpus = [client.gpu(index) for index in range(3)]
        client.mig_gpu(0)
        client.create_device(gpus[0], "3g")
        device = client.mig_devices(gpus[0])[0]
        library = ctypes.CDLL("libnvidia-ml.so.1")
        return (
            [nv.nvmlDeviceGetTopologyCommonAncestor(gpus[0], other) for other in gpus],
            client.code(nv.nvmlDeviceGetTopologyCommonAncestor, gpus[0], device),
            library.nvmlDeviceGetTopologyCommonAncestor(gpus[0], gpus[1], None),
        )

    levels, of_a_mig_device, nowhere = node("2xa100-sxm4-40gb,1xtesla-t4").call(ask)
    assert levels == [nv.NVML_TOPOLOGY_INTERNAL, nv.NVML_TOPOLOGY_NODE, nv.NVML_TOPOLOGY_NODE]
    assert of_a_mig_device == "INVALID_ARGUMENT"
    assert nowhere == nv.NVML_ERROR_INVALID_ARGUMENT


def test_waiting_for_an_event_ends_with_a_time_out(node):
    def wait():
        handle = client.gpu()
        events = nv.nvmlEventSetCreate()
        nv.nvmlDeviceRegisterEvents(handle, nv.nvmlEventTypeXidCriticalError, events)
        result = client.code(nv.nvmlEventSetWait_v2, events, 20)
        nv.nvmlEventSetFree(events)
        return result

    simulator = node()
    assert simulator.call(wait) == "TIMEOUT"
    waited = next(call for call in simulator.calls() if call.function.startswith("nvmlEventSetWait"))
    assert 0.02 <= waited.seconds < 2


def test_a_forked_child_starts_its_own_session(node):
    def fork():
        nv.nvmlInit()
        child = os.fork()
        if child == 0:
            os._exit(0 if client.code(nv.nvmlDeviceGetCount) in ("SUCCESS", "UNINITIALIZED") else 1)
        return os.waitpid(child, 0)[1]

    assert node().call(fork) == 0


def test_the_oldest_library_is_for_the_oldest_driver_that_is_supported():
    assert OLDEST_BRANCH == 525
