# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""kubelet_reservation_info tells what pods have as mig_config wants it; no doubtful answer passes for "nothing"."""

from __future__ import annotations

import json
import socket
import typing as t

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.gpufleet.mig.plugins.module_utils import node_kubelet
from ansible_collections.gpufleet.mig.plugins.module_utils.engine import holders
from ansible_collections.gpufleet.mig.plugins.module_utils.grpc import http2
from ansible_collections.gpufleet.mig.plugins.modules import kubelet_reservation_info
from ansible_collections.gpufleet.mig.tests.unit.plugins.module_utils.engine import boards
from ansible_collections.gpufleet.mig.tests.unit.plugins.module_utils.grpc.stand_in import (
    answer,
    recorded,
    sends,
    serving,
)

RECORDED = recorded()
FIRST, SECOND = "MIG-b80c8fef-a677-5340-85fb-2c162d75df03", "MIG-334b6b31-12a2-5bfc-bf4f-870c0954b343"
SHARED = "GPU-c093c7f6-6edf-595e-9539-70de788efbaa"


def field(number: int, content: t.Union[str, bytes]) -> bytes:
    """A text or a message as a field of a message; shorter than 128 bytes, or than 16384."""
    data = content.encode() if isinstance(content, str) else content
    size = bytes([len(data)]) if len(data) < 0x80 else bytes([len(data) & 0x7F | 0x80, len(data) >> 7])
    return bytes([number << 3 | 2]) + size + data


def devices(resource: str, *ids: str) -> bytes:
    return field(2, field(1, resource) + b"".join(field(2, each) for each in ids))


def pod(*parts: bytes, name: str = "bert-0") -> bytes:
    return field(1, field(1, name) + field(2, "training") + field(3, field(1, "worker") + b"".join(parts)))


@pytest.fixture(name="ask")
def run_module(capsys, monkeypatch):
    """Run the module against a kubelet that plays these scripts, one for each question; warnings are in the answer."""
    warned: list[str] = []
    monkeypatch.setattr("ansible.module_utils.basic.AnsibleModule.warn", lambda _module, text: warned.append(text))

    def ask(*scripts, **arguments):
        with serving(*scripts) as kubelet:
            given = {"socket": kubelet.path, **arguments}
            with patch_module_args(given), pytest.raises(SystemExit):
                kubelet_reservation_info.main()
        return {**json.loads(capsys.readouterr().out), "warned": warned}

    return ask


# --- what pods have --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("server", ["go-list", "py-list"])
@pytest.mark.parametrize("check", [False, True], ids=["run", "check"])
def test_devices_of_pods_are_reservations_and_what_has_no_uuid_is_named(ask, server, check):
    said = ask(sends(RECORDED[server]), _ansible_check_mode=check)
    assert (said["changed"], said["available"]) == (False, True)
    assert said["reservations"] == [
        {"device": FIRST, "holder": "pod training/bert-0 (container worker)", "source": "kubelet"},
        {"device": SECOND, "holder": "pod training/bert-0 (container worker)", "source": "kubelet"},
        {"device": SHARED, "holder": "pod notebooks/jupyter-ana (container jupyter)", "source": "kubelet"},
        {"device": SHARED, "holder": "pod notebooks/jupyter-bo (container jupyter)", "source": "kubelet"},
    ]
    claimed = ("pod dra/claimed (container main)", "gpu.nvidia.com", "gpu-0-mig-1g5gb-19-0", "kubelet")
    passed_on = ("pod vms/windows (container compute)", "nvidia.com/GA100_A100", "0000:41:00.0", "kubelet")
    assert [tuple(each.values()) for each in said["unresolved"]] == [passed_on, claimed]
    for holder, resource, device, _source in (passed_on, claimed):
        (warning,) = (text for text in said["warned"] if holder in text)
        for word in (resource, device, "drain"):
            assert word in warning
    assert "allocatable" not in said


def test_mig_config_takes_the_answer_as_it_is(ask):
    node = boards.node(boards.gpu("a100-sxm4-40gb", instances=[("1g.5gb", 0)]))
    whole, part = node.gpus[0].uuid, node.gpus[0].instances[0].compute[0].uuid
    said = ask(sends(answer(pod(devices("nvidia.com/gpu.shared", f"{whole}::0", f"{whole}::9", part)))))
    (gpu,) = holders.attach(node, (), holders.reservations_of(said["reservations"])).gpus
    for reserved in (gpu.reservations, gpu.instances[0].compute[0].reservations):
        assert [each.holder for each in reserved] == ["pod training/bert-0 (container worker)"]


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        (SHARED, SHARED),
        (FIRST, FIRST),
        (FIRST.upper(), FIRST.upper()),
        (f"{FIRST}::3", FIRST),
        (f"MIG-{SHARED}/7/0", f"MIG-{SHARED}/7/0"),
        ("0", None),
        ("0:2", None),
        ("0:2::1", None),
        (f"{SHARED}-1", None),
        ("GPU-", None),
        ("", None),
        (f"{FIRST}\n", None),
    ],
)
def test_a_uuid_is_a_reservation_without_its_replica_and_anything_else_is_not(device, expected):
    reservations, unresolved = node_kubelet.told_apart([node_kubelet.Given("pod a/b (container c)", "r", device)])
    assert [each["device"] for each in reservations] == ([expected] if expected else [])
    assert len(unresolved) == (0 if expected else 1)


@pytest.mark.parametrize("resource", ["rdma/hca", "amd.com/gpu", "nvidia.community/gpu", "example.com/nvidia.com/gpu"])
def test_resources_of_others_are_passed_over(ask, resource):
    said = ask(sends(answer(pod(devices(resource, FIRST)))))
    assert (said["reservations"], said["unresolved"], said["warned"]) == ([], [], [])


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        (field(2, "gpu.nvidia.com") + field(4, "gpu-0"), [("gpu.nvidia.com", "gpu-0")]),
        (field(1, field(1, "k8s.gpu.nvidia.com/claim=x")), [("k8s.gpu.nvidia.com", "k8s.gpu.nvidia.com/claim=x")]),
        (field(2, "dra.example.com") + field(4, "nic-0"), []),
        (b"", []),
    ],
    ids=["driver named", "kubelet before 1.34", "another driver", "nothing"],
)
def test_claims_of_nvidias_dra_driver_are_named(ask, claim, expected):
    said = ask(sends(answer(pod(field(5, field(2, "claim") + field(4, claim))))))
    assert [(each["resource"], each["device"]) for each in said["unresolved"]] == expected


def test_a_kubelet_without_pods_has_given_nothing(ask):
    said = ask(sends(answer(b"")))
    assert (said["available"], said["reservations"], said["warned"]) == (True, [], [])


def test_names_are_shown_as_what_they_are_and_move_no_cursor(ask):
    said = ask(sends(answer(pod(devices("nvidia.com/gpu", FIRST), name="a\x1b[2Jb"))))
    assert "\x1b" not in said["reservations"][0]["holder"]


def test_what_there_is_to_give_is_asked_for_when_somebody_wants_to_know(ask):
    said = ask(sends(RECORDED["go-list"]), sends(RECORDED["go-alloc"]), allocatable=True)
    assert said["allocatable"] == {
        "nvidia.com/gpu.shared": [f"{SHARED}::{replica}" for replica in range(5)],
        "nvidia.com/mig-1g.5gb": [SECOND, FIRST],
    }
    assert len(said["reservations"]) == 4


# --- no kubelet ------------------------------------------------------------------------------------------------------


def test_a_node_without_kubelet_has_no_reservations(ask, tmp_path):
    said = ask(socket=str(tmp_path / "kubelet.sock"))
    assert (said["changed"], said["available"], said["reservations"], said["unresolved"]) == (False, False, [], [])
    assert (said["problem"]["error"], said["warned"]) == ("NO_SOCKET", [])
    assert said["problem"]["message"] == f"There is no {tmp_path}/kubelet.sock."


def test_a_kubelet_that_was_killed_left_pods_and_that_is_a_warning(ask):
    with serving() as folder:
        left = f"{folder.path}.left"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(left)
        said = ask(socket=left)
    assert (said["available"], said["reservations"]) == (False, [])
    assert said["problem"]["error"] == "NOT_LISTENING"
    assert "go on running" in said["warned"][0]


# --- a kubelet that does not tell ------------------------------------------------------------------------------------


def failed(said, *words):
    """It is a failure with one sentence that has these words, and nobody can read reservations out of it."""
    assert said["failed"]
    assert {"reservations", "available"}.isdisjoint(said)
    assert "Traceback" not in said["msg"]
    for word in words:
        assert word in said["msg"]
    return said["error"]


@pytest.mark.parametrize(
    ("name", "error", "advice"),
    [
        ("go-disabled", "UNKNOWN", "journalctl"),
        ("go-exhausted", "RESOURCE_EXHAUSTED", "run again"),
        ("go-unimplemented", "UNIMPLEMENTED", "Kubernetes 1.20"),
    ],
)
def test_a_refusal_is_a_failure_with_its_name_and_what_to_do(ask, name, error, advice):
    assert failed(ask(sends(RECORDED[name])), advice, "The kubelet cannot tell") == error


def test_reservations_alone_are_no_answer_where_more_was_asked(ask):
    said = ask(sends(RECORDED["go-list"]), sends(RECORDED["go-unimplemented"]), allocatable=True)
    assert failed(said, "allocatable") == "UNIMPLEMENTED"


def test_a_kubelet_that_hangs_is_a_failure_in_time(ask):
    assert failed(ask(lambda peer: peer.request(), timeout=0.3), "0.3 seconds") == "TooLate"


@pytest.mark.parametrize("content", [b"\x0a", b"\x08\x01", field(1, b"\x0a\x01\xff"), field(1, field(3, b"\x12\x01"))])
def test_an_answer_that_is_no_list_of_pods_is_a_failure(ask, content):
    assert failed(ask(sends(answer(content)))) == "Malformed"


def test_without_root_it_says_so(ask, monkeypatch):
    def refuse(_self, _path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(http2.socket.socket, "connect", refuse)
    assert failed(ask(), "become: true") == "NotAllowed"


@pytest.mark.parametrize("timeout", [0, -1, "nan"])
def test_a_time_that_is_none_is_refused(ask, timeout):
    assert "timeout" in ask(timeout=timeout)["msg"]
