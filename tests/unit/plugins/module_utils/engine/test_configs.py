# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""From labels and config entries to what is wanted, and every way in which a wish can be wrong."""

from __future__ import annotations

import copy
import pathlib
import random
import time

import pytest
import yaml

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import compare, configs, driver, profiles
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import Problem, WishError
from ansible_collections.gpufleet.mig.tests.unit.plugins.module_utils.engine import boards

A100 = "a100-sxm4-40gb"
A100_ID = "0x20B010DE"
EXPECTED = yaml.safe_load(pathlib.Path(__file__).with_name("expected_labels.yaml").read_text(encoding="utf-8"))
LOST = Problem("nvmlDeviceGetMigMode", "GPU_IS_LOST", "reset or reboot")


def entry(counts=None, *, devices="all", enabled=True, **more):
    made = {"devices": devices, "mig-enabled": enabled, **more}
    if counts is not None:
        made["mig-devices"] = counts
    return made


def document(**labels):
    return {"version": "v1", "mig-configs": labels}


def seven_small():
    return {"1g.5gb": 7}


def counts_of(wish):
    """``{"1g.5gb": 7}``, with partial CIs as ``1c.3g.20gb``."""
    counts = {}
    for instance in wish.instances:
        for ci in instance.compute:
            name = profiles.name_of(instance.profile, ci.slices)
            counts[name] = counts.get(name, 0) + 1
    return counts


def counts_by_gpu(wanted):
    return {index: counts_of(wish) if wish.enabled else "off" for index, wish in wanted.wishes.items()}


def groups_of(wish):
    return [(instance.profile.name, [ci.slices for ci in instance.compute]) for instance in wish.instances]


def resolve_config(node, *entries, **options):
    return configs.resolve(node, config=list(entries), **options)


def refusal(call, *args, **options):
    with pytest.raises(WishError) as caught:
        call(*args, **options)
    return caught.value


# --- documents: what is accepted -------------------------------------------------------------------------------------


def test_the_forms_that_operators_have_are_accepted():
    text = f"""
    version: v1
    mig-configs:
      all-disabled:
        - devices: all
          mig-enabled: false
      empty:
        - devices: all
          mig-enabled: true
          mig-devices: {{}}
      filtered:
        - device-filter: ["{A100_ID}", "20b210de:134f10de"]
          devices: [0, "1"]
          mig-enabled: true
          mig-devices:
            "1g.5gb": 2
            "3g.20gb": 1
            "2g.10gb": 0
        - device-filter: 0x20B710DE
          devices: 3
          mig-enabled: true
          mig-devices: {{"1g.6gb+me": 1}}
    """
    checked = configs.check_configs(yaml.safe_load(text))
    assert list(checked.labels) == ["all-disabled", "empty", "filtered"]
    first, second = checked.labels["filtered"]
    assert first.filters == ((0x20B010DE, None), (0x20B210DE, 0x134F10DE))
    assert first.devices == {0, 1}
    assert [(str(name), count) for name, count in first.instances] == [("1g.5gb", 2), ("3g.20gb", 1)]
    assert second.filters == ((0x20B710DE, None),)
    assert second.devices == {3}
    assert checked.labels["all-disabled"] == (configs.Entry(enabled=False),)
    assert checked.labels["empty"] == (configs.Entry(),)


@pytest.mark.parametrize("spelling", [A100_ID, "0x20b010de", "20B010DE", "0X20B010DE", 0x20B010DE, [A100_ID]])
def test_every_spelling_of_a_device_id_matches(spelling):
    wanted = resolve_config(boards.dgx(A100, 1), entry(seven_small(), **{"device-filter": spelling}))
    assert counts_by_gpu(wanted) == {0: seven_small()}


@pytest.mark.parametrize("nothing", [None, "", []])
def test_an_empty_filter_is_no_filter(nothing):
    assert resolve_config(boards.dgx(A100, 1), entry(seven_small(), **{"device-filter": nothing})).wishes


def test_a_filter_with_subsystem_only_takes_that_subsystem():
    node = boards.node(
        boards.gpu(A100, 0, pci_subsystem_id=0x134F10DE), boards.gpu(A100, 1, pci_subsystem_id=0x147F10DE)
    )
    wanted = resolve_config(
        node,
        entry(seven_small(), **{"device-filter": f"{A100_ID}:0x134F10DE"}),
        entry({"3g.20gb": 2}, **{"device-filter": [f"{A100_ID}:0x147f10de"]}),
    )
    assert counts_by_gpu(wanted) == {0: {"1g.5gb": 7}, 1: {"3g.20gb": 2}}


@pytest.mark.parametrize(
    ("devices", "meant"),
    [("all", [0, 1, 2]), ([0, 2], [0, 2]), (1, [1]), ("1", [1]), (["0", 1], [0, 1]), ([], [])],
)
def test_devices_are_all_or_a_list_or_one(devices, meant):
    wanted = resolve_config(boards.dgx(A100, 3), entry(seven_small(), devices=devices))
    assert list(wanted.wishes) == meant


def test_several_entries_of_a_label_each_speak_of_their_gpus():
    wanted = resolve_config(
        boards.dgx(A100),
        entry(devices=[0, 1, 2, 3], enabled=False),
        entry({"1g.5gb": 7}, devices=[4]),
        entry({"2g.10gb": 3}, devices=[5]),
        entry({"3g.20gb": 2}, devices=[6]),
        entry({"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1}, devices=[7]),
    )
    assert counts_by_gpu(wanted) == {
        0: "off",
        1: "off",
        2: "off",
        3: "off",
        4: {"1g.5gb": 7},
        5: {"2g.10gb": 3},
        6: {"3g.20gb": 2},
        7: {"3g.20gb": 1, "2g.10gb": 1, "1g.5gb": 2},
    }


# --- documents: what is refused --------------------------------------------------------------------------------------

GOOD = document(mine=[entry(seven_small())])


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (None, "the config document must be a mapping, not nothing"),
        ([], "the config document must be a mapping, not a list"),
        ("v1", "the config document must be a mapping, not text 'v1'"),
        ({}, "the config document has no version; it must say version: v1"),
        ({"version": "v2", "mig-configs": {}}, "version of the config document is 'v2'; only v1 is known"),
        ({"version": 1, "mig-configs": {}}, "version of the config document is 1; only v1 is known"),
        ({"version": "v1"}, "the config document has no mig-configs, which holds the labels"),
        ({"version": "v1", "mig-configs": None}, "mig-configs must be a mapping, not nothing"),
        ({"version": "v1", "mig-configs": {}}, "mig-configs has no labels; at least one is needed"),
        ({"version": "v1", "mig-configs": []}, "mig-configs must be a mapping, not a list"),
        (
            {"version": "v1", "mig_configs": {}},
            "the config document has an unknown key 'mig_configs'; known are mig-configs, version",
        ),
        (document(mine=None), "label mine must be a list of entries, not nothing"),
        (document(mine={}), "label mine must be a list of entries, not a mapping"),
        (document(mine=[]), "label mine has no entries; at least one is needed"),
        (document(mine=["all"]), "label mine, entry 1 must be a mapping, not text 'all'"),
        (document(mine=[entry(seven_small()), 7]), "label mine, entry 2 must be a mapping, not the number 7"),
        ({"version": "v1", "mig-configs": {7: []}}, "a label must be text, not the number 7"),
    ],
)
def test_a_document_of_another_shape_is_refused_by_naming_the_place(data, sentence):
    assert str(refusal(configs.check_configs, data)) == sentence


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"devices": ...}, "label mine, entry 1 lacks devices"),
        ({"mig-enabled": ...}, "label mine, entry 1 lacks mig-enabled"),
        (
            {"mig-devices": ...},
            "label mine, entry 1 enables MIG but lacks mig-devices; write {} for MIG without instances",
        ),
        (
            {"mig_devices": {}},
            (
                "label mine, entry 1 has an unknown key 'mig_devices'; known are mig-devices, devices, device-filter, "
                "mig-enabled"
            ),
        ),
        (
            {1: 2},
            "label mine, entry 1 has an unknown key 1; known are devices, device-filter, mig-enabled, mig-devices",
        ),
        ({"mig-enabled": "yes"}, "mig-enabled of label mine, entry 1 must be true or false, not text 'yes'"),
        ({"mig-enabled": 1}, "mig-enabled of label mine, entry 1 must be true or false, not the number 1"),
        (
            {"mig-enabled": False},
            "label mine, entry 1 wants instances while mig-enabled is false; remove mig-devices or enable MIG",
        ),
        *(
            (
                {"devices": wrong},
                f"devices of label mine, entry 1 must be all, a GPU index or a list of these, not {shown}",
            )
            for wrong, shown in [
                ("ALL", "'ALL'"),
                (-1, "-1"),
                (True, "True"),
                (0.0, "0.0"),
                (None, "None"),
                ([0, [1]], "[1]"),
                (["all"], "'all'"),
                ({}, "{}"),
                ("GPU-1", "'GPU-1'"),
            ]
        ),
        *(
            (
                {"device-filter": wrong},
                (
                    "device-filter of label mine, entry 1 must be PCI device and vendor id such as 0x20B010DE, with or "
                    f"without a subsystem such as 0x20B010DE:0x134F10DE, or a list of these, not {shown}"
                ),
            )
            for wrong, shown in [
                ("A100", "'A100'"),
                ("0x20B0", "'0x20B0'"),
                ("0x20B010DE:", "'0x20B010DE:'"),
                (True, "True"),
                (-1, "-1"),
                ([[A100_ID]], "['0x20B010DE']"),
                ({"id": A100_ID}, "{'id': '0x20B010DE'}"),
                (0x1_0000_0000, "4294967296"),
            ]
        ),
        ({"mig-devices": ["1g.5gb"]}, "mig-devices of label mine, entry 1 must be a mapping, not a list"),
        ({"mig-devices": "1g.5gb"}, "mig-devices of label mine, entry 1 must be a mapping, not text '1g.5gb'"),
        ({"mig-devices": {"1g.5gb": -1}}, "count of 1g.5gb in label mine, entry 1 is -1; it cannot be negative"),
        ({"mig-devices": {"1g.5gb": True}}, "count of 1g.5gb in label mine, entry 1 must be a whole number, not true"),
        (
            {"mig-devices": {"1g.5gb": "7"}},
            "count of 1g.5gb in label mine, entry 1 must be a whole number, not text '7'",
        ),
        (
            {"mig-devices": {"1g.5gb": 7.0}},
            "count of 1g.5gb in label mine, entry 1 must be a whole number, not the number 7.0",
        ),
        (
            {"mig-devices": {"1g.5gb": None}},
            "count of 1g.5gb in label mine, entry 1 must be a whole number, not nothing",
        ),
        (
            {"mig-devices": {"1g.5gb": 0, "2g.10gb": 0}},
            "all counts of label mine, entry 1 are 0; write mig-devices: {} for MIG without instances",
        ),
        (
            {"mig-devices": {"small": 7}},
            (
                "mig-devices of label mine, entry 1: 'small' is not a profile name such as 1g.5gb, 1g.5gb+me, "
                "1c.3g.20gb or 1g"
            ),
        ),
        (
            {"mig-devices": {7: 1}},
            "mig-devices of label mine, entry 1: 7 is not a profile name such as 1g.5gb, 1g.5gb+me, 1c.3g.20gb or 1g",
        ),
        (
            {"mig-devices": {"4c.3g.20gb": 1}},
            (
                "mig-devices of label mine, entry 1: '4c.3g.20gb' asks for 4 compute slices of a GPU instance that "
                "has 3; at most 3c.3g is possible"
            ),
        ),
    ],
)
def test_a_wrong_entry_is_refused_by_naming_label_key_and_value(changes, sentence):
    data = copy.deepcopy(GOOD)
    made = data["mig-configs"]["mine"][0]
    for key, value in changes.items():
        if value is ...:
            del made[key]
        else:
            made[key] = value
    assert str(refusal(configs.check_configs, data)) == sentence


@pytest.mark.parametrize(("one", "other"), [("a,b", "a, b"), ("a", " a "), ("a , b", "a,b")])
def test_two_labels_that_differ_in_blanks_only_are_refused_by_naming_both(one, other):
    labels = {one: [entry(seven_small())], "c": [entry(enabled=False)], other: [entry(enabled=False)]}
    remedy = "which are one and the same; remove one of them or give it another name"
    for data, where in (({"version": "v1", "mig-configs": labels}, "mig-configs"), (labels, "configs")):
        sentence = str(refusal(configs.resolve, boards.dgx(A100, 1), label="c", configs=data))
        assert sentence == f"{where} has the labels {one!r} and {other!r}, {remedy}"


HUGE = {"hex": int("f" * 6000, 16), "decimal": int("9" * 4000), "negative": -int("f" * 6000, 16)}


@pytest.mark.parametrize("huge", HUGE)
@pytest.mark.parametrize(
    "make",
    [
        lambda number: entry({"1g.5gb": number}),
        lambda number: entry({number: 1}),
        lambda number: entry(seven_small(), devices=number),
        lambda number: entry(seven_small(), devices=[0, number]),
        lambda number: entry(seven_small(), devices={"gpu": [number]}),
        lambda number: entry(seven_small(), enabled=number),
        entry,
        lambda number: entry(seven_small(), **{"device-filter": number}),
        lambda number: entry(seven_small(), **{"device-filter": [number, [number]]}),
        lambda number: {**entry(seven_small()), number: 1},
        lambda number: number,
    ],
)
def test_a_huge_number_in_an_entry_is_refused_in_one_short_sentence(make, huge):
    sentence = str(refusal(resolve_config, boards.dgx(A100, 1), make(HUGE[huge])))
    assert len(sentence) < 350
    assert "\n" not in sentence


@pytest.mark.parametrize("huge", HUGE)
@pytest.mark.parametrize(
    "options",
    [
        lambda number: {"gpus": number},
        lambda number: {"gpus": [number]},
        lambda number: {"gpus": [[number]]},
        lambda number: {"expected_gpus": number},
        lambda number: {"unlisted": number},
        lambda number: {"label": number},
        lambda number: {"configs": {number: [entry(seven_small())]}},
        lambda number: {"configs": {"version": number, "mig-configs": {}}},
        lambda number: {"configs": number},
    ],
)
def test_a_huge_number_as_an_option_is_refused_in_one_short_sentence(options, huge):
    wish = {"label": "all-1g.5gb", **options(HUGE[huge])}
    sentence = str(refusal(configs.resolve, boards.dgx(A100, 1), **wish))
    assert len(sentence) < 350
    assert "\n" not in sentence


@pytest.mark.parametrize("option", ["gpus", "expected_gpus", "label"])
def test_a_text_of_thousands_of_digits_is_refused_in_one_short_sentence(option):
    wish = {"label": "all-1g.5gb", option: "9" * 5000}
    assert len(str(refusal(configs.resolve, boards.dgx(A100, 1), **wish))) < 350


def test_a_count_that_no_gpu_could_hold_is_named_by_its_first_digits():
    sentence = str(refusal(resolve_config, boards.dgx(A100, 1), entry({"1g.5gb": int("f" * 6000, 16)})))
    assert sentence == (
        f"count of 1g.5gb in config, entry 1 is 0x{'f' * 68}... (6002 characters); no GPU holds that many"
    )


DANGEROUS = [
    "$(reboot)",
    "`id`",
    "a;b",
    "a|b",
    "a&b",
    "a>b",
    "a b",
    "a'b",
    'a"b',
    "a*",
    "~",
    "!x",
    "a\nb",
    "-rf",
    "\u00e4",
]
PATHS = ["../all-1g.5gb", "/etc/passwd", "a/b", "a\\b", ".", ".."]


@pytest.mark.parametrize("label", [*DANGEROUS, *PATHS, "a" * 300, "a\x00b", "a:b"])
def test_a_label_with_other_characters_is_refused_in_documents_and_as_choice(label):
    for sentence in (
        str(refusal(configs.check_configs, document(**{label: [entry(seven_small())]}))),
        str(refusal(configs.resolve, boards.dgx(A100, 1), label=label)),
    ):
        assert sentence.endswith("is not allowed: only letters, digits and the characters . _ + , - are")
        assert sentence.isprintable()
        assert len(sentence) < 200


@pytest.mark.parametrize("label", ["{{ mig_profile }}", "all-{{ size }}", "{% if x %}a{% endif %}"])
def test_a_template_that_was_not_filled_in_is_called_by_its_name(label):
    sentence = str(refusal(configs.resolve, boards.dgx(A100, 1), label=label))
    assert sentence == f"label '{label}' is a template that nobody has filled in; give the label itself"


@pytest.mark.parametrize("label", ["", "   "])
def test_an_empty_label_is_refused(label):
    assert "the label is empty" in str(refusal(configs.resolve, boards.dgx(A100, 1), label=label))


@pytest.mark.parametrize("label", [7, True, ["all-1g.5gb"], {"a": 1}])
def test_a_label_of_another_type_is_refused(label):
    assert "a label must be text, not " in str(refusal(configs.resolve, boards.dgx(A100, 1), label=label))


# --- generated labels ------------------------------------------------------------------------------------------------


def expected_of(board):
    known = next(
        ({k: v for k, v in g.items() if k != "boards"} for g in EXPECTED["labels"] if board in g["boards"]), None
    )
    assert known is not None, f"{board} is missing in expected_labels.yaml"
    for more in EXPECTED["beyond_the_default_file"]:
        if more["board"] == board:
            known.update({label: counts for label, counts in more.items() if label != "board"})
    return known


WELL_KNOWN = [board for board in boards.keys(mig=True) if boards.confidence(board) in ("high", "medium")]


def generated_on(board):
    labels = configs.generated_labels(boards.node(boards.gpu(board)))
    return {label: by_gpu[0] for label, by_gpu in labels.items() if label not in ("all-disabled", "all-enabled")}


@pytest.mark.parametrize("board", WELL_KNOWN)
def test_generated_labels_are_those_that_operators_know(board):
    assert generated_on(board) == expected_of(board)


@pytest.mark.parametrize("board", WELL_KNOWN)
def test_every_generated_label_resolves_to_its_counts(board):
    node = boards.node(boards.gpu(board))
    for label, counts in expected_of(board).items():
        wanted = configs.resolve(node, label=label)
        assert (wanted.source, counts_by_gpu(wanted)) == ("generated", {0: counts})


def test_all_boards_of_the_table_exist():
    assert sorted(WELL_KNOWN) == sorted(board for group in EXPECTED["labels"] for board in group["boards"])


def test_h200_nvl_has_its_double_memory_label_though_the_default_file_forgets_it():
    assert generated_on("h200-nvl-141gb")["all-1g.35gb"] == {"1g.35gb": 4}


@pytest.mark.parametrize("board", ["h100-sxm5-94gb", "rtx-pro-6000-workstation", "rtx-pro-6000-maxq"])
def test_boards_that_the_default_file_forgets_have_all_balanced(board):
    assert "all-balanced" in generated_on(board)


def test_labels_of_profiles_that_no_board_has_are_unknown():
    everywhere = {label for board in boards.keys(mig=True) for label in generated_on(board)}
    assert not everywhere & set(EXPECTED["of_no_board"])


def test_one_label_counts_seven_or_four_by_what_the_board_offers_without_any_filter():
    node = boards.node(boards.gpu("a100-sxm4-80gb"), boards.gpu(A100))
    wanted = configs.resolve(node, label="all-1g.10gb")
    assert counts_by_gpu(wanted) == {0: {"1g.10gb": 7}, 1: {"1g.10gb": 4}}


def test_one_name_for_unrelated_profiles_of_hopper_and_rtx_is_each_board_s_own():
    node = boards.node(boards.gpu("h100-nvl-94gb"), boards.gpu("rtx-pro-6000-server"))
    wanted = configs.resolve(node, label="all-1g.24gb")
    assert [wish.instances[0].profile.id for wish in wanted.wishes.values()] == [15, 14]


def test_rtx_pro_5000_gets_what_it_holds_and_not_the_counts_of_the_default_file():
    assert generated_on("rtx-pro-5000-48gb")["all-1g.24gb"] == {"1g.24gb": 2}
    assert "all-balanced" not in generated_on("rtx-pro-5000-48gb")


def test_all_balanced_takes_the_1g_that_fits_more_often():
    assert generated_on("h100-sxm5-80gb")["all-balanced"] == {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}


def test_a_bare_size_fills_each_gpu_of_a_mixed_fleet():
    node = boards.node(*map(boards.gpu, ["a30-24gb", A100, "b200-180gb", "rtx-pro-6000-server"]))
    assert counts_by_gpu(configs.resolve(node, label="all-1g")) == {
        0: {"1g.6gb": 4},
        1: {"1g.5gb": 7},
        2: {"1g.23gb": 7},
        3: {"1g.24gb": 4},
    }
    assert counts_by_gpu(configs.resolve(node, label="1g,2g")) == {
        0: {"2g.12gb": 1, "1g.6gb": 1},
        1: {"2g.10gb": 1, "1g.5gb": 1},
        2: {"2g.45gb": 1, "1g.23gb": 1},
        3: {"2g.48gb": 1, "1g.24gb": 1},
    }


def test_a_generated_label_in_another_driver_s_spelling_is_the_same():
    wanted = configs.resolve(boards.dgx("b200-180gb", 1), label="all-1g.24gb.me")
    assert counts_by_gpu(wanted) == {0: {"1g.23gb+me": 1}}
    assert wanted.wishes[0].said == "1g.23gb+me: 1"


def test_mode_only_labels_speak_of_every_mig_capable_gpu():
    node = boards.node(boards.gpu(A100), boards.gpu("tesla-t4"), boards.gpu("h100-sxm5-80gb"))
    labels = configs.generated_labels(node)
    assert labels["all-disabled"] == labels["all-enabled"] == {0: {}, 2: {}}
    assert list(configs.resolve(node, label="all-disabled").wishes) == [0, 2]


def test_all_enabled_implies_that_mig_without_instances_is_meant():
    wanted = configs.resolve(boards.dgx(A100, 1), label="all-enabled")
    assert wanted.wishes[0] == (True, (), False, "MIG on without instances")
    given = {"all-enabled": [entry({})]}
    assert configs.resolve(boards.dgx(A100, 1), label="all-enabled", configs=given).source == "given"


def test_a_generated_label_that_one_gpu_of_the_node_lacks_names_that_gpu():
    node = boards.node(boards.gpu(A100), boards.gpu("a30-24gb"))
    error = refusal(configs.resolve, node, label="all-3g.20gb")
    assert str(error).startswith("GPU 1 (NVIDIA A30) has no profile 3g.20gb and none of 3 slices, only 1g.6gb")
    assert error.details["gpu"] == 1
    assert error.details["pci_bus_id"] == node.gpus[1].pci_bus_id
    assert error.details["uuid"] == node.gpus[1].uuid


def test_a_board_without_a_balanced_layout_says_so():
    sentence = str(refusal(configs.resolve, boards.dgx("rtx-pro-5000-48gb", 1), label="all-balanced"))
    assert sentence.startswith("GPU 0 (NVIDIA RTX PRO 5000 Blackwell) has no balanced layout")


# --- which label -----------------------------------------------------------------------------------------------------


def test_given_labels_win_over_generated_ones_and_the_source_is_named():
    given = document(**{"all-1g.5gb": [entry({"1g.5gb": 3})]})
    node = boards.dgx(A100, 1)
    assert configs.resolve(node, label="all-1g.5gb", configs=given).source == "given"
    assert counts_by_gpu(configs.resolve(node, label="all-1g.5gb", configs=given)) == {0: {"1g.5gb": 3}}
    assert configs.resolve(node, label="all-2g.10gb", configs=given).source == "generated"
    assert configs.resolve(node, label="2x1g.5gb", configs=given).source == "count"


def test_configs_may_be_a_document_or_checked_or_just_labels():
    labels = {"mine": [entry(seven_small())]}
    for given in (document(**labels), configs.check_configs(document(**labels)), labels):
        assert counts_by_gpu(configs.resolve(boards.dgx(A100, 1), label="mine", configs=given)) == {0: seven_small()}
    assert configs.resolve(boards.dgx(A100, 1), label="all-1g", configs={}).source == "generated"


@pytest.mark.parametrize(
    ("label", "counts"),
    [
        ("7x1g.5gb", {"1g.5gb": 7}),
        ("3g.20gb,2x2g.10gb", {"3g.20gb": 1, "2g.10gb": 2}),
        (" 3g.20gb , 2x2g.10gb ", {"3g.20gb": 1, "2g.10gb": 2}),
        ("1g.5gb,1g.5gb", {"1g.5gb": 2}),
        ("1g.5gb+me,6x1g", {"1g.5gb+me": 1, "1g.5gb": 6}),
        ("3x1c.3g.20gb,3g.20gb", {"1c.3g.20gb": 3, "3g.20gb": 1}),
    ],
)
def test_the_count_form_needs_no_config(label, counts):
    wanted = configs.resolve(boards.dgx(A100, 1), label=label)
    assert (wanted.source, counts_by_gpu(wanted)) == ("count", {0: counts})


def test_a_count_of_zero_in_the_count_form_is_refused():
    assert "has a count of 0; leave 1g.5gb out" in str(refusal(configs.resolve, boards.dgx(A100, 1), label="0x1g.5gb"))


@pytest.mark.parametrize(
    ("label", "nearest"),
    [
        ("all-1g.5gbb", "all-1g.5gb,"),
        ("All-Balanced", "all-balanced,"),
        ("all-ballanced", "all-balanced,"),
        ("all-disable", "all-disabled,"),
        ("night-shft", "night-shift,"),
        ("all-1g.7gb", "all-1g.5gb, all-1g.5gb.me, all-1g.10gb,"),
        ("all-3g.40gb", "all-3g.20gb,"),
    ],
)
def test_an_unknown_label_names_the_known_ones_with_the_near_miss_first(label, nearest):
    given = {"night-shift": [entry(seven_small())]}
    error = refusal(configs.resolve, boards.dgx(A100, 1), label=label, configs=given)
    assert str(error).startswith(f"label '{label}' is unknown; known here, nearest first: {nearest}")
    assert set(error.details["known"]) == {"night-shift", *configs.generated_labels(boards.dgx(A100, 1))}


def test_an_unknown_label_is_called_that_beside_a_gpu_that_cannot_do_mig():
    node = boards.node(boards.gpu(A100), boards.gpu("tesla-t4", index=1))
    with pytest.raises(WishError, match="label 'all-balancd' is unknown; known here, nearest first: all-balanced"):
        configs.resolve(node, label="all-balancd")


def test_a_long_list_of_known_labels_is_cut_in_the_sentence_but_not_in_the_details():
    given = {f"shift-{number}": [entry(seven_small())] for number in range(50)}
    error = refusal(configs.resolve, boards.dgx(A100, 1), label="nothing-like-it", configs=given)
    assert str(error).endswith(f" and {len(error.details['known']) - 20} more")
    assert len(error.details["known"]) == 50 + len(configs.generated_labels(boards.dgx(A100, 1)))


@pytest.mark.parametrize("options", [{}, {"label": "all-1g", "config": []}])
def test_exactly_one_of_label_and_config_is_needed(options):
    assert "label or " in str(refusal(configs.resolve, boards.dgx(A100, 1), **options))


@pytest.mark.parametrize("config", [{}, "all-1g.5gb", []])
def test_an_inline_config_must_be_entries(config):
    assert str(refusal(configs.resolve, boards.dgx(A100, 1), config=config)).startswith("config ")


# --- what a GPU cannot hold ------------------------------------------------------------------------------------------


def test_an_unknown_profile_names_gpu_and_what_it_has():
    sentence = str(refusal(configs.resolve, boards.dgx(A100, 1), label="2x1g.20gb"))
    assert sentence == (
        "GPU 0 (NVIDIA A100-SXM4-40GB) has no profile 1g.20gb; of 1 slice it has 1g.5gb, 1g.5gb+me, 1g.10gb; besides "
        "2g.10gb, 3g.20gb, 4g.20gb, 7g.40gb"
    )


@pytest.mark.parametrize(
    ("board", "label", "sentence"),
    [
        (A100, "8x1g.5gb", "GPU 0 (NVIDIA A100-SXM4-40GB) holds at most 7 of 1g.5gb, not 8"),
        (A100, "2x1g.5gb+me", "GPU 0 (NVIDIA A100-SXM4-40GB) holds at most 1 of 1g.5gb+me, not 2"),
        ("a30-24gb", "3x2g.12gb", "GPU 0 (NVIDIA A30) holds at most 2 of 2g.12gb, not 3"),
    ],
)
def test_a_count_over_the_maximum_names_the_maximum(board, label, sentence):
    assert str(refusal(configs.resolve, boards.dgx(board, 1), label=label)) == sentence


def test_a_huge_count_is_refused_at_once():
    started = time.perf_counter()
    refusal(resolve_config, boards.dgx(A100, 1), entry({"1c.3g.20gb": 10**12}))
    refusal(resolve_config, boards.dgx(A100, 1), entry({"1g.5gb": 10**12}))
    assert time.perf_counter() - started < 1


def test_partial_instances_count_toward_the_maximum_of_their_gi():
    sentence = str(refusal(configs.resolve, boards.dgx(A100, 1), label="2x3g.20gb,1c.3g.20gb"))
    assert sentence == (
        "GPU 0 (NVIDIA A100-SXM4-40GB) has no room for 3g.20gb: 2, 1c.3g.20gb: 1: at most 2 GPU instances 3g.20gb fit, "
        "each with 3 compute slices"
    )


def test_possible_by_count_but_not_by_placement_shows_the_slots():
    error = refusal(configs.resolve, boards.dgx(A100, 1), label="4g.20gb,2x2g.10gb")
    sentence, picture = str(error).split("\n", 1)
    assert sentence == (
        "GPU 0 (NVIDIA A100-SXM4-40GB) has no room for 1 x 4g.20gb and 2 x 2g.10gb together, though for each kind "
        "alone; one 2g.10gb less would fit; they can only be here:"
    )
    assert picture == error.details["picture"]
    assert picture.splitlines() == [
        "memory slice   0       1       2       3       4       5       6       7",
        "1 x 4g.20gb   |===============================|",
        "2 x 2g.10gb   |===============|===============|===============|",
    ]


def test_possible_by_placement_but_not_by_engines_names_the_engines():
    sentence = str(refusal(configs.resolve, boards.dgx("a30-24gb", 1), label="1g.6gb+me,2g.12gb+me"))
    assert "they would take 2 jpeg engines of 1 and 2 ofa engines of 1; one 1g.6gb+me less would fit" in sentence


def test_mig_without_instances_needs_allow_empty_and_the_gpu_is_named():
    node = boards.dgx(A100, 2)
    mixed = [entry(seven_small(), devices=[0]), entry({}, devices=[1])]
    error = refusal(configs.resolve, node, config=mixed)
    assert str(error).startswith("GPU 1 (NVIDIA A100-SXM4-40GB) would have MIG on without instances by the config")
    assert "allow_empty" in str(error)
    assert counts_by_gpu(configs.resolve(node, config=mixed, allow_empty=True)) == {0: seven_small(), 1: {}}


@pytest.mark.parametrize("label", ["all-1g.5gb", "2x1g.5gb+me", "3g.20gb,1g", "all-balanced", "8x1g.5gb"])
def test_a_known_board_whose_driver_lists_no_profiles_while_mig_is_off_is_as_if_it_did(label):
    def answer(**fields):
        try:
            wish = configs.resolve(boards.node(boards.gpu(A100, mode=False, **fields)), label=label).wishes[0]
        except WishError as error:
            return str(error)
        return [(each.profile.id, each.profile.name, each.compute) for each in wish.instances], wish.said

    assert answer(profiles=None) == answer()


def test_an_unknown_board_whose_driver_lists_no_profiles_while_mig_is_off_is_a_clear_refusal():
    node = boards.node(boards.gpu(A100, mode=False, profiles=None, pci_device_id=0xFFFF10DE))
    for label in ("all-1g.5gb", "2x1g.5gb", "all-balanced"):
        sentence = str(refusal(configs.resolve, node, label=label))
        assert "lists no profiles while MIG is off" in sentence
        assert "turn MIG on first (label all-enabled)" in sentence
    assert configs.resolve(node, label="all-enabled").wishes[0].enabled
    assert not configs.resolve(node, label="all-disabled").wishes[0].enabled
    assert configs.resolve(node, label="all-1g.5gb", mode_only=True).wishes[0].mode_only


def test_mode_only_leaves_instances_out_of_the_wish():
    wanted = configs.resolve(boards.dgx(A100, 1), config=[entry({})], mode_only=True)
    assert wanted.wishes[0] == (True, (), True, "MIG on, instances as they are")


# --- which GPUs ------------------------------------------------------------------------------------------------------


def test_two_entries_for_one_gpu_that_differ_are_refused():
    error = refusal(resolve_config, boards.dgx(A100, 2), entry({"1g.5gb": 7}), entry({"3g.20gb": 2}, devices=[1]))
    assert str(error) == (
        "GPU 1 (NVIDIA A100-SXM4-40GB) has two entries in the config that differ: 1g.5gb: 7 and 3g.20gb: 2"
    )
    sentence = str(refusal(resolve_config, boards.dgx(A100, 1), entry(enabled=False), entry({})))
    assert sentence.endswith("that differ: MIG off and MIG on without instances")


def test_two_entries_for_one_gpu_that_say_the_same_are_fine():
    one, other = entry({"1g.5gb": 2, "3g.20gb": 1}), entry({"3g.20gb": 1, "1g.5gb": 2, "2g.10gb": 0})
    assert counts_by_gpu(resolve_config(boards.dgx(A100, 1), one, other)) == {0: {"3g.20gb": 1, "1g.5gb": 2}}


def test_a_mig_capable_gpu_that_is_listed_but_covered_by_no_filter_is_refused():
    node = boards.node(boards.gpu(A100), boards.gpu("a800-sxm4-40gb"))
    error = refusal(resolve_config, node, entry(seven_small(), **{"device-filter": A100_ID}))
    assert error.details["gpu"] == 1
    assert "no device-filter there covers its id 0x20BD10DE" in str(error)


def test_gpus_without_mig_are_skipped_under_all_and_listed():
    node = boards.node(boards.gpu("tesla-t4"), boards.gpu(A100), boards.gpu("l40s"))
    for options in ({"label": "all-1g.5gb"}, {"config": [entry(seven_small())]}, {"label": "all-disabled"}):
        wanted = configs.resolve(node, **options)
        assert (list(wanted.wishes), wanted.skipped, wanted.unlisted) == ([1], (0, 2), ())


def test_a_node_without_any_mig_capable_gpu_has_nothing_to_do_under_any_generated_label():
    for label in ("all-1g.5gb", "all-balanced", "all-disabled", "all-enabled", "7x1g.5gb"):
        wanted = configs.resolve(boards.dgx("tesla-t4", 2), label=label)
        assert (wanted.wishes, wanted.skipped) == ({}, (0, 1))


def test_a_gpu_without_mig_that_is_named_for_mig_is_refused():
    node = boards.node(boards.gpu("tesla-t4"), boards.gpu(A100))
    for error in (
        refusal(resolve_config, node, entry(seven_small(), devices=[0, 1])),
        refusal(configs.resolve, node, label="all-1g.5gb", gpus=[0]),
        refusal(configs.resolve, node, label="all-enabled", gpus=[node.gpus[0].pci_bus_id]),
    ):
        assert str(error).startswith("GPU 0 (Tesla T4) cannot do MIG")
        assert error.details["gpu"] == 0


def test_a_gpu_without_mig_that_is_named_for_no_mig_is_fine():
    node = boards.node(boards.gpu("tesla-t4"), boards.gpu(A100))
    wanted = resolve_config(node, entry(devices=[0], enabled=False), entry(seven_small(), devices=[1]))
    assert (list(wanted.wishes), wanted.skipped) == ([1], (0,))
    assert configs.resolve(node, label="all-disabled", gpus=[0]).skipped == (0,)


def test_the_display_gpu_of_a_dgx_station_is_an_ordinary_gpu_without_mig():
    node = boards.node(
        *map(boards.gpu, ["a100-sxm4-80gb"] * 3), boards.gpu("dgx-display"), boards.gpu("a100-sxm4-80gb")
    )
    station = document(
        **{
            "all-1g.10gb-dgx-station-80": [
                entry({"1g.10gb": 7}, **{"device-filter": "0x20B210DE"}),
                entry(enabled=False, **{"device-filter": "0x1FB010DE"}),
            ],
            "balanced-k8s": [
                entry(devices=[0], enabled=False),
                entry({"3g.40gb": 2}, devices=[1]),
                entry({"2g.20gb": 3, "1g.10gb": 1}, devices=[2]),
                entry(devices=[3], enabled=False),
                entry({"1g.10gb": 7}, devices=[4]),
            ],
        }
    )
    for label in station["mig-configs"]:
        wanted = configs.resolve(node, label=label, configs=station)
        assert (list(wanted.wishes), wanted.skipped) == ([0, 1, 2, 4], (3,))
    assert configs.resolve(node, label="all-1g").skipped == (3,)


@pytest.mark.parametrize("unknown", [{"problems": (LOST,)}, {"mig_capable": None}, {"mode_current": None}])
def test_a_gpu_that_does_not_answer_is_an_error_if_the_wish_means_it(unknown):
    node = boards.node(boards.gpu(A100), boards.gpu(A100, 1, **unknown))
    for options in (
        {"label": "all-1g.5gb"},
        {"label": "all-disabled"},
        {"config": [entry(seven_small(), devices=[0])], "unlisted": "disable"},
    ):
        error = refusal(configs.resolve, node, **options)
        assert str(error).startswith("GPU 1 (NVIDIA A100-SXM4-40GB) does not ")
        assert error.details["gpu"] == 1


def test_a_label_that_only_an_unreadable_gpu_might_offer_is_not_called_unknown():
    node = boards.node(boards.gpu(A100), boards.gpu(A100, 1, problems=(LOST,)))
    sentence = str(refusal(configs.resolve, node, label="all-4g.90gb", gpus=[0]))
    assert sentence.startswith("GPU 1 (NVIDIA A100-SXM4-40GB) does not answer: ")
    assert LOST.call in sentence
    assert LOST.error in sentence


def test_a_gpu_that_only_root_may_read_is_refused_by_saying_how_to_become_root():
    denied = Problem("nvmlDeviceGetGpuInstances", "NO_PERMISSION", driver.remedy("NO_PERMISSION"))
    node = boards.node(boards.gpu(A100, problems=(Problem("nvmlDeviceGetName", "UNKNOWN", "look"), denied)))
    sentence = str(refusal(configs.resolve, node, label="all-1g.5gb"))
    assert sentence.startswith(
        "GPU 0 (NVIDIA A100-SXM4-40GB) does not answer a user without privilege: nvmlDeviceGetGpuInstances says "
        "NO_PERMISSION; run as root, which 'become: true' does; "
    )


def test_a_gpu_that_does_not_answer_disturbs_nobody_if_the_wish_does_not_mean_it():
    node = boards.node(boards.gpu(A100), boards.gpu(A100, 1, problems=(LOST,)))
    assert list(configs.resolve(node, label="all-1g.5gb", gpus=[0]).wishes) == [0]
    wanted = resolve_config(node, entry(seven_small(), devices=[0]))
    assert (list(wanted.wishes), wanted.unlisted) == ([0], (1,))


def test_gpus_that_no_entry_lists_follow_the_policy():
    node = boards.dgx(A100, 4)
    two = entry(seven_small(), devices=[2, 3])
    assert list(resolve_config(node, two).wishes) == [2, 3]
    assert resolve_config(node, two).unlisted == (0, 1)
    off = resolve_config(node, two, unlisted="disable")
    assert counts_by_gpu(off) == {0: "off", 1: "off", 2: seven_small(), 3: seven_small()}
    assert off.unlisted == (0, 1)
    error = refusal(resolve_config, node, two, unlisted="fail")
    assert "does not list GPUs 0, 1, and unlisted is fail" in str(error)
    assert resolve_config(node, entry(seven_small()), unlisted="fail").unlisted == ()


def test_a_gpu_without_mig_is_never_unlisted():
    node = boards.node(boards.gpu("tesla-t4"), boards.gpu(A100))
    wanted = resolve_config(node, entry(seven_small(), devices=[1]), unlisted="fail")
    assert (wanted.unlisted, wanted.skipped) == ((), (0,))


def test_an_unknown_policy_is_refused():
    error = refusal(configs.resolve, boards.dgx(A100, 1), label="all-1g", unlisted="keep")
    assert str(error) == "unlisted is 'keep'; it must be one of ignore, disable, fail"


def test_an_index_that_the_node_does_not_have_is_refused():
    error = refusal(resolve_config, boards.dgx(A100, 2), entry(seven_small(), devices=[0, 1, 2]))
    assert str(error) == "the config lists GPU 2, but the GPUs of this node are 0, 1"


def test_an_entry_filtered_for_other_boards_may_list_more_gpus_than_this_node_has():
    wanted = resolve_config(
        boards.dgx(A100, 2),
        entry(seven_small(), devices=[0, 1], **{"device-filter": A100_ID}),
        entry({"1g.10gb": 7}, devices=[0, 1, 2, 3], **{"device-filter": "0x233010DE"}),
    )
    assert list(wanted.wishes) == [0, 1]


@pytest.mark.parametrize(
    "selector",
    [1, "1", " 1 ", "00000000:0F:00.0", "0000:0f:00.0", "0F:00.0", "0f:00", "GPU-b", "gpu-B", [1], ["0F:00.0", 1]],
)
def test_a_gpu_is_named_by_index_uuid_or_pci_id_in_any_spelling(selector):
    node = boards.node(boards.gpu(A100, uuid="GPU-a"), boards.gpu(A100, 1, uuid="GPU-b"), boards.gpu(A100, 2))
    assert list(configs.resolve(node, label="all-1g", gpus=selector).wishes) == [1]


@pytest.mark.parametrize("everything", [None, "all", ["all"]])
def test_all_gpus_are_the_default(everything):
    assert list(configs.resolve(boards.dgx(A100, 3), label="all-1g", gpus=everything).wishes) == [0, 1, 2]


def test_gpus_outside_the_selection_are_left_alone_and_not_counted():
    wanted = configs.resolve(
        boards.dgx(A100, 4), config=[entry(seven_small(), devices=[0])], gpus="0,1", unlisted="disable"
    )
    assert counts_by_gpu(wanted) == {0: seven_small(), 1: "off"}
    assert wanted.unlisted == (1,)


@pytest.mark.parametrize(
    ("gpus", "sentence"),
    [
        ([9], "gpus names 9, but the GPUs of this node are 0, 1"),
        ("9", "gpus names '9', but the GPUs of this node are 0, 1"),
        ("GPU-x", "gpus names 'GPU-x', but the GPUs of this node are GPU-a, GPU-b"),
        ("41:00.0", "gpus names '41:00.0', but the GPUs of this node are 00000000:07:00.0, 00000000:0F:00.0"),
        ("0001:07:00.0", "gpus names '0001:07:00.0', but the GPUs of this node are 00000000:07:00.0, 00000000:0F:00.0"),
        ("MIG-1", "gpus names 'MIG-1', which is a MIG device; name the GPU that it is on"),
        ("first", "gpus names 'first', which is neither an index nor a GPU UUID nor a PCI id"),
        ([True], "gpus names True, which is neither an index nor a GPU UUID nor a PCI id"),
        ([-1], "gpus names -1, which is neither an index nor a GPU UUID nor a PCI id"),
        ([1.0], "gpus names 1.0, which is neither an index nor a GPU UUID nor a PCI id"),
        ([], "gpus is an empty list; give all, or some GPUs by index, UUID or PCI id"),
        ("{{ x }}", "gpus names '{{ x }}', which is neither an index nor a GPU UUID nor a PCI id"),
    ],
)
def test_an_unknown_gpu_is_refused_by_naming_those_there_are(gpus, sentence):
    node = boards.node(boards.gpu(A100, uuid="GPU-a"), boards.gpu(A100, 1, uuid="GPU-b"))
    assert str(refusal(configs.resolve, node, label="all-1g", gpus=gpus)) == sentence


def test_a_selector_that_two_gpus_match_is_refused():
    node = boards.node(
        boards.gpu(A100, pci_bus_id="00000000:07:00.0"), boards.gpu(A100, 1, pci_bus_id="00000001:07:00.0")
    )
    error = refusal(configs.resolve, node, label="all-1g", gpus="07:00.0")
    assert str(error) == (
        "gpus names '07:00.0', which is GPU 0 at 00000000:07:00.0 and GPU 1 at 00000001:07:00.0; write the PCI "
        "domain too"
    )
    assert list(configs.resolve(node, label="all-1g", gpus="0001:07:00.0").wishes) == [1]


LOOK = "see with 'lspci -d 10de:' and 'dmesg'"
OR_CORRECT = "or correct expected_gpus"


@pytest.mark.parametrize("expected", [2, "2", None])
def test_the_expected_number_of_gpus_is_checked(expected):
    assert configs.resolve(boards.dgx(A100, 2), label="all-1g", expected_gpus=expected)


@pytest.mark.parametrize(
    ("expected", "sentence"),
    [
        (3, f"this node has 2 GPUs, expected_gpus says 3; {LOOK} which GPU is missing, {OR_CORRECT}"),
        ("8", f"this node has 2 GPUs, expected_gpus says 8; {LOOK} which GPU is missing, {OR_CORRECT}"),
        (1, f"this node has 2 GPUs, expected_gpus says 1; {LOOK} which GPU was not expected, {OR_CORRECT}"),
        ("many", "expected_gpus must be a number of GPUs, not text 'many'"),
        (True, "expected_gpus must be a number of GPUs, not true"),
        (2.0, "expected_gpus must be a number of GPUs, not the number 2.0"),
    ],
)
def test_another_number_of_gpus_than_expected_is_refused(expected, sentence):
    assert str(refusal(configs.resolve, boards.dgx(A100, 2), label="all-1g", expected_gpus=expected)) == sentence


# --- compute instances that share ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("board", "label", "groups"),
    [
        (A100, "3x1c.3g.20gb", [("3g.20gb", [1, 1, 1])]),
        (A100, "4x1c.3g.20gb", [("3g.20gb", [1, 1, 1]), ("3g.20gb", [1])]),
        (A100, "1c.3g.20gb,2c.3g.20gb", [("3g.20gb", [2, 1])]),
        (A100, "2x1c.3g.20gb,2x2c.3g.20gb", [("3g.20gb", [2, 1]), ("3g.20gb", [2, 1])]),
        (A100, "3g.20gb,1c.3g.20gb", [("3g.20gb", [3]), ("3g.20gb", [1])]),
        (A100, "3c.3g.20gb", [("3g.20gb", [3])]),
        (A100, "1c.3g,1g", [("3g.20gb", [1]), ("1g.5gb", [1])]),
        (A100, "4c.7g.40gb,3c.7g.40gb", [("7g.40gb", [4, 3])]),
        ("h100-sxm5-80gb", "3c.7g.80gb,2x2c.7g.80gb", [("7g.80gb", [3, 2, 2])]),
        ("a30-24gb", "2c.4g.24gb,2x1c.4g.24gb", [("4g.24gb", [2, 1, 1])]),
        ("rtx-pro-6000-server", "3x1c.2g.48gb+gfx", [("2g.48gb+gfx", [1, 1]), ("2g.48gb+gfx", [1])]),
    ],
)
def test_partial_instances_share_as_few_gis_as_possible_largest_first(board, label, groups):
    assert groups_of(configs.resolve(boards.dgx(board, 1), label=label).wishes[0]) == groups


def test_what_fits_one_gi_on_ampere_may_not_on_hopper():
    label = "2x3c.7g,1c.7g"
    assert groups_of(configs.resolve(boards.dgx(A100, 1), label=label).wishes[0]) == [("7g.40gb", [3, 3, 1])]
    assert "at most 1 GPU instances 7g.80gb fit" in str(
        refusal(configs.resolve, boards.dgx("h100-sxm5-80gb", 1), label=label)
    )


def test_a_ci_size_that_the_gi_does_not_have_names_those_it_has():
    sentence = str(refusal(configs.resolve, boards.dgx(A100, 1), label="3c.4g.20gb"))
    assert sentence == (
        "GPU 0 (NVIDIA A100-SXM4-40GB) has no 3c.4g.20gb; inside 4g.20gb it has 4g.20gb, 2c.4g.20gb, 1c.4g.20gb"
    )


def test_the_wish_says_in_resolved_names_what_it_is():
    wanted = configs.resolve(boards.dgx(A100, 1), label="3x1c.3g,2x1g.6gb")
    assert wanted.wishes[0].said == "1c.3g.20gb: 3, 1g.5gb: 2"


# --- there and back --------------------------------------------------------------------------------------------------


def random_gpu(chooser, index):
    """A GPU with a random layout that count-based entries can express: at most one GI of each profile is shared."""
    board = chooser.choice(["a30-24gb", A100, "h100-sxm5-80gb", "b200-180gb", "rtx-pro-6000-server", "tesla-t4"])
    if board == "tesla-t4" or chooser.random() < 0.1:
        return boards.gpu(board, index, mode=False)
    offered = boards.profiles(board)
    chosen, occupied, shared = [], 0, set()
    for _attempt in range(chooser.randrange(12)):
        profile = chooser.choice(offered)
        place = chooser.choice(profile.placements)
        together = [next(each for each in offered if each.name == name) for name, *_rest in chosen]
        if occupied & profiles.span(place) or profiles.engines_exceeded([*together, profile], offered):
            continue
        occupied |= profiles.span(place)
        sizes = [size for size in profiles.compute_sizes(profile) if size < profile.slices]
        if sizes and profile.id not in shared and chooser.random() < 0.4:
            shared.add(profile.id)
            chosen.append((profile.name, place.start, [chooser.choice(sizes)]))
        else:
            chosen.append((profile.name, place.start))
    return boards.gpu(board, index, instances=chosen)


@pytest.mark.parametrize("seed", range(60))
def test_a_layout_as_config_resolves_to_that_layout(seed):
    chooser = random.Random(seed)
    node = boards.node(*(random_gpu(chooser, index) for index in range(8)))
    entries = configs.as_config(node)
    wanted = configs.resolve(node, config=entries, allow_empty=True)
    assert compare.verdict(node, wanted) == ("match", {})
    assert list(wanted.wishes) == [gpu.index for gpu in node.gpus if gpu.mig_capable]
    assert configs.check_configs(document(saved=entries))


def test_gpus_of_equal_layout_share_an_entry():
    node = boards.node(
        boards.gpu(A100, instances=[("3g.20gb", 4), ("1g.5gb", 0)]),
        boards.gpu(A100, 1, mode=False),
        boards.gpu(A100, 2, instances=[("1g.5gb", 1), ("3g.20gb", 4)]),
        boards.gpu(A100, 3, instances=[("3g.20gb", 0, [1, 1])]),
    )
    assert configs.as_config(node) == [
        {"devices": [0, 2], "mig-enabled": True, "mig-devices": {"1g.5gb": 1, "3g.20gb": 1}},
        {"devices": [1], "mig-enabled": False, "mig-devices": {}},
        {"devices": [3], "mig-enabled": True, "mig-devices": {"1c.3g.20gb": 2}},
    ]
    assert configs.as_config(node.gpus[1]) == [{"devices": [1], "mig-enabled": False, "mig-devices": {}}]


@pytest.mark.parametrize(
    "gpu",
    [
        boards.gpu(A100, instances=[("3g.20gb", 4, [])]),
        boards.gpu(A100, instances=[("3g.20gb", 0, [1]), ("3g.20gb", 4, [1])]),
        boards.gpu(A100, problems=(LOST,)),
        boards.gpu(A100, mode_current=None),
        boards.gpu("tesla-t4"),
    ],
    ids=["orphan", "spread", "lost", "unknown-mode", "no-mig"],
)
def test_what_entries_cannot_say_is_left_out_rather_than_said_wrong(gpu):
    assert configs.as_config(gpu) == []
