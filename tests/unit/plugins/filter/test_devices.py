# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Containers get the devices that were asked for, the same ones each time, or a refusal that says what there is."""

from __future__ import annotations

import csv
import typing as t

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.mig.plugins.filter.devices import device_requests
from ansible_collections.gpufleet.mig.plugins.module_utils.engine import report
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import Node
from ansible_collections.gpufleet.mig.tests.unit.plugins.module_utils.engine import boards

A100 = "a100-sxm4-40gb"


def info(busy: t.Collection[int] = ()) -> dict[str, t.Any]:
    """GPU 0 with 2x 1g, 2g and 3g, GPU 1 without MIG, GPU 2 with MIG and nothing on it."""
    first = boards.gpu(A100, instances=[("1g.5gb", 0), ("1g.5gb", 1), ("2g.10gb", 2), ("3g.20gb", 4)], busy=busy)
    others = (boards.gpu("tesla-t4", index=1, mode=False), boards.gpu(A100, index=2))
    return {"available": True, **report.node_report(Node((first, *others)))}


def place(index: int, seen: t.Any = None) -> t.Any:
    """The MIG device with this index of GPU 0."""
    devices = [ci for gi in (seen or info())["gpus"][0]["instances"] for ci in gi["compute_instances"]]
    return next(each for each in devices if each["mig_index"] == index)


def uuids(wanted: t.Any, seen: t.Any = None, **options: t.Any) -> list[str]:
    return list(device_requests(seen or info(), wanted, **options)["uuids"])


def refusal(wanted: t.Any, seen: t.Any = None, **options: t.Any) -> str:
    with pytest.raises(AnsibleFilterError) as caught:
        device_requests(seen or info(), wanted, **options)
    return str(caught.value)


def of_profile(profile: str) -> list[str]:
    return [place(index)["uuid"] for index in range(4) if place(index)["profile"] == profile]


# --- which devices ---------------------------------------------------------------------------------------------------


def test_one_device_by_each_of_its_names():
    device = place(1)
    for name in (device["uuid"], device["uuid"].upper(), device["legacy_uuid"], "0:1", "mig0:1", "nvidia.com/gpu=0:1"):
        assert uuids(name) == [device["uuid"]], name


def test_the_spelling_of_old_drivers_becomes_that_of_today():
    chosen = device_requests(info(), place(0)["legacy_uuid"])
    assert chosen["cdi"] == [f"nvidia.com/gpu={place(0)['uuid']}"]
    assert chosen["devices"][0]["legacy_uuid"] == place(0)["legacy_uuid"]


def test_so_many_of_a_profile_are_the_first_of_it():
    assert uuids("2x1g.5gb") == of_profile("1g.5gb")
    assert uuids("1g.5gb") == of_profile("1g.5gb")[:1]
    assert uuids({"1g.5gb": 2}) == uuids("2 x 1G.5GB") == uuids(["1g.5gb", "1g.5gb"]) == uuids("1g.5gb,1g.5gb")


def test_a_whole_gpu_is_one_without_mig():
    whole = info()["gpus"][1]["uuid"]
    assert uuids(1) == uuids("1") == uuids(whole) == uuids("gpu") == uuids({"gpu": 1}) == [whole]


def test_devices_come_in_the_order_in_which_they_were_asked_for():
    three, one = of_profile("3g.20gb")[0], of_profile("1g.5gb")[0]
    assert uuids(["3g.20gb", "1g.5gb"]) == [three, one]
    assert uuids("1g.5gb, 3g.20gb") == [one, three]


def test_what_is_asked_for_by_name_is_not_given_to_who_takes_any():
    first, second = of_profile("1g.5gb")
    assert uuids(["1g.5gb", first]) == [second, first]


def test_the_same_question_has_the_same_answer():
    seen = info()
    seen["gpus"][0]["instances"].reverse()
    assert uuids("2x1g.5gb", seen) == uuids("2x1g.5gb")


def test_devices_that_somebody_uses_can_be_left_out():
    first, second = of_profile("1g.5gb")
    seen = info(busy={0})
    busy = next(each["uuid"] for each in (place(index, seen) for index in range(4)) if each["processes"])
    free = second if busy == first else first
    assert uuids("1g.5gb", seen, unused=True) == uuids("1g.5gb", seen, unused="yes") == [free]
    assert uuids("2x1g.5gb", seen) == [first, second]
    assert "2 devices 1g.5gb are asked for, and this host has 2, 1 of them free" in refusal(
        "2x1g.5gb", seen, unused=True
    )


def test_devices_that_are_promised_can_be_left_out():
    first, second = of_profile("1g.5gb")
    assert uuids("1g.5gb", without=[first]) == [second]
    assert uuids("1g.5gb", without=["MIG-gone", {"device": first, "holder": "container a"}]) == [second]
    said = refusal(first, without=[{"device": first, "holder": "container a\n"}])
    assert "is reserved for container a" in said


def test_devices_that_are_open_can_be_left_out():
    first, second = of_profile("1g.5gb")
    instance = next(gi for gi in info()["gpus"][0]["instances"] if gi["compute_instances"][0]["uuid"] == first)
    holder = {"gpu": 0, "gi": instance["id"], "ci": 0, "cooperative": False}
    assert uuids("1g.5gb", holders=[holder]) == [second]
    assert uuids("1g.5gb", holders=[{**holder, "cooperative": True}, {**holder, "gi": None, "ci": None}]) == [first]
    assert "0 of them free" in refusal("gpu", holders=[{"gpu": 1, "gi": None, "ci": None}])


# --- what is refused -------------------------------------------------------------------------------------------------


def test_what_is_not_there_is_refused_with_what_is():
    said = refusal("3x1g.5gb")
    assert "3 devices 1g.5gb are asked for, and this host has 2. It has 0:0 " in said
    for index in range(4):
        assert f"0:{index} {place(index)['profile']} {place(index)['uuid']}" in said
    assert f"1 GPU {info()['gpus'][1]['uuid']}" in said


@pytest.mark.parametrize("name", ["MIG-gone", "0:9", "7", "GPU-x", "all", "7g.40gb", "1c.3g.20gb", "1g.5gb+me"])
def test_a_name_of_nothing_is_refused(name):
    assert "It has 0:0" in refusal(name)


def test_a_gpu_in_mig_mode_is_no_device_of_a_container():
    said = refusal("0")
    assert "GPU 0 is in MIG mode, so that a container can only have what is on it: 0:0 " in said
    assert "GPU 2 is in MIG mode" in refusal("2")
    assert "no device that a container could have" in refusal("2")


def test_one_device_is_not_given_twice():
    assert "0:1" in refusal(["0:1", place(1)["uuid"]])
    assert "is asked for twice" in refusal(["0:1", place(1)["uuid"]])


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (None, "names no device"),
        (True, "names no device"),
        ([[None]], "names no device"),
        ({"1g.5gb": 0}, "give a number from 1 on"),
        ({"1g.5gb": "2"}, "give a number from 1 on"),
        ({"1g.5gb": True}, "give a number from 1 on"),
        ({"0:1": 1}, "is no profile"),
        ({"2x1g.5gb": 1}, "is no profile"),
        ("0x1g.5gb", "give a number from 1 on"),
    ],
)
def test_what_names_nothing_is_refused(wanted, why):
    assert why in refusal(wanted)


def test_a_host_with_very_many_devices_is_not_told_in_full():
    seen = info()
    seen["gpus"] = [{**seen["gpus"][0], "index": index} for index in range(8)]
    said = refusal("7g.40gb", seen)
    assert said.count("MIG-") == 16
    assert said.endswith(", 16 more.")


@pytest.mark.parametrize("nothing", ["", " , ", [], {}, [""]])
def test_a_request_for_nothing_is_refused_since_an_image_may_take_that_for_all(nothing):
    assert refusal(nothing) == "No device is asked for: name one, or leave the request out of the container."


@pytest.mark.parametrize("seen", [{}, [], "x", {"gpus": [{}]}, {"gpus": 7}])
def test_what_is_no_result_of_mig_info_is_said_to_be_none(seen):
    with pytest.raises(AnsibleFilterError, match="result of mig_info"):
        device_requests(seen, "0:1")


def test_a_host_whose_driver_does_not_answer_has_no_devices_to_choose_from():
    seen = {"available": False, "problem": {"message": "nvmlInit failed with DRIVER_NOT_LOADED."}}
    assert "The devices of this host are not known: nvmlInit failed" in refusal("0:1", seen)


@pytest.mark.parametrize("option", ["without", "holders"])
def test_what_is_to_be_left_out_is_a_list(option):
    assert f"{option} is 'x'; give a list" in refusal("0:1", **{option: "x"})


# --- in the words of each tool ---------------------------------------------------------------------------------------


def test_docker_podman_and_compose_get_the_same_devices_in_their_own_words():
    first, second = of_profile("1g.5gb")
    chosen = device_requests(info(), "2x1g.5gb")
    assert chosen["run_cdi"] == ["--device", f"nvidia.com/gpu={first}", "--device", f"nvidia.com/gpu={second}"]
    assert chosen["visible_devices"] == f"{first},{second}"
    (device,) = chosen["compose"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "device_ids": [first, second], "capabilities": ["gpu"]}
    assert chosen["compose_cdi"] == {"devices": [f"nvidia.com/gpu={first}", f"nvidia.com/gpu={second}"]}


def test_docker_reads_the_value_of_gpus_as_csv_and_finds_one_field():
    first, second = of_profile("1g.5gb")
    option, value = device_requests(info(), "2x1g.5gb")["run_gpus"]
    assert option == "--gpus"
    assert next(csv.reader([value])) == [f"device={first},{second}"]


def test_no_device_is_named_by_an_index_that_may_be_another_one_tomorrow():
    chosen = device_requests(info(), ["0:0", "1"])
    words = [*chosen["cdi"], *chosen["run_gpus"], chosen["visible_devices"]]
    assert not [word for word in words if "0:0" in word or word.endswith("=1")]
    assert chosen["devices"][0]["index"] == "0:0"
