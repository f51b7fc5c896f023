# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""YAML of people and surveys is plain, small and unambiguous, or it is refused with one sentence."""

from __future__ import annotations

import time

import pytest

from ansible_collections.gpufleet.mig.plugins.plugin_utils._bounded_yaml import (
    MAX_BYTES,
    YamlProblem,
    parse,
    read_file,
)

PLAIN = """\
version: v1
mig-configs:
  halves:
    - devices: all
      mig-enabled: true
      mig-devices: {3g.20gb: 2}
"""

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join(['*' + before] * 9)}]\n" for before, name in zip("abcdefghij", "bcdefghijk")
)

REFUSED = {
    "bomb of aliases": (BOMB, "grows to more than 100000 values"),
    "alias inside its own anchor": ("a: &a [*a]", "inside its own anchor in line 1"),
    "tower of brackets": ("[" * 500, "nested more than 16 levels deep"),
    "tower of lines": ("".join("  " * depth + "a:\n" for depth in range(40)), "nested more than 16 levels deep"),
    "tab as indentation": ("version: v1\nmig-configs:\n\tall: []\n", "line 3 has a tab; indent with spaces"),
    "tab before a value": ("version:\n\t- v1\n", "line 2 has a tab"),
    "open quote": ('version: "v1', "is not YAML"),
    "open bracket": ("version: [v1", "is not YAML"),
    "two colons": ("a: b: c", "is not YAML: mapping values are not allowed"),
    "same key twice": ("mig-configs:\n  a: []\n  a: [1]\n", "has the key 'a' twice, again in line 3"),
    "list as key": ("? [a]\n: b\n", "has a key that is not plain text in line 1"),
    "Python object": ("a: !!python/object/apply:os.system ['id']", "uses the tag 'tag:yaml.org,2002:python"),
    "binary": ("a: !!binary aGVsbG8=", "uses the tag 'tag:yaml.org,2002:binary'"),
    "tag of Ansible": ("a: !vault abc", "uses the tag '!vault' in line 1"),
    "two documents": ("a: 1\n---\nb: 2\n", "more than one document (the second starts in line 2)"),
    "unknown alias": ("a: *nowhere", "is not YAML"),
    "control character": ("a: \x00", "is not YAML"),
    "half a character": ("a: \ud800", "cannot be read as plain data"),
    "number out of words": ("a: !!int seven", "cannot be read as plain data"),
    "truth out of words": ("a: !!bool seven", "cannot be read as plain data"),
    "number of nothing": ("a: !!int ''", "cannot be read as plain data"),
    "fraction of nothing": ("a: !!float ''", "cannot be read as plain data"),
    "long number": ("a:\n  b: " + "9" * 101, "has the number '999"),
    "long number in hex": ("a: 0x" + "f" * 6000, "at most 100 characters of a number are read"),
    "long negative number": ("a: -" + "9" * 6000, "in line 1; at most 100 characters"),
    "long number as key": ("{0b" + "1" * 500 + ": 1}", "at most 100 characters"),
    "long number with a tag": ("a: !!int " + "9" * 5000, "at most 100 characters"),
    "long number of sixties": ("a: 1" + ":59" * 5000, "at most 100 characters"),
    "long fraction of sixties": ("a: 1" + ":59" * 5000 + ".5", "at most 100 characters"),
    "too long": ("#" * (MAX_BYTES + 1), "at most 1048576 (1 MiB) are read"),
}


LONG = "x" * 10_000
VERBOSE = {
    "key": f"? {LONG[:1000]}\n: 1\n? {LONG[:1000]}\n: 2\n",
    "tag": f"a: !{LONG} b",
    "anchor": f"a: &{LONG} [*{LONG}]",
    "alias": f"a: *{LONG}",
    "number": "a: " + "9" * 10_000,
    "value of a tag": f"a: !!int {LONG}",
    "truth": f"a: !!bool {LONG}",
    "half a character": LONG + "\ud800",
}


@pytest.mark.parametrize("text", VERBOSE.values(), ids=list(VERBOSE))
def test_a_refusal_is_short_whatever_the_document_holds(text):
    with pytest.raises(YamlProblem) as problem:
        parse(text)
    assert len(str(problem.value)) < 350
    assert "\n" not in str(problem.value)


def test_numbers_as_they_are_needed_are_read():
    assert parse("[0x20B010DE, 7, -1, 0b11, 1_000, 2.5, 1e3]") == [0x20B010DE, 7, -1, 3, 1000, 2.5, "1e3"]


def test_plain_yaml_becomes_plain_data():
    entry = {"devices": "all", "mig-enabled": True, "mig-devices": {"3g.20gb": 2}}
    assert parse(PLAIN) == {"version": "v1", "mig-configs": {"halves": [entry]}}


def test_a_few_aliases_are_welcome():
    assert parse("a: &a {1g.5gb: 7}\nb: *a\n") == {"a": {"1g.5gb": 7}, "b": {"1g.5gb": 7}}


def test_a_merge_key_is_no_double_key():
    assert parse("a: &a {x: 1, y: 2}\nb: {<<: *a, x: 3}\n")["b"] == {"x": 3, "y": 2}


def test_a_label_that_looks_like_a_date_stays_text():
    assert parse("2026-11-29: [a]") == {"2026-11-29": ["a"]}


def test_text_with_the_tags_of_ansible_is_text():
    class Tagged(str):
        """What a variable is inside ansible-core 2.19 and later."""

    assert parse(Tagged("a: b")) == {"a": "b"}


def test_json_is_yaml():
    assert parse('[{"devices": "all", "mig-enabled": false}]') == [{"devices": "all", "mig-enabled": False}]


@pytest.mark.parametrize(("text", "words"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_plain_small_yaml_is_refused_in_one_sentence(text, words):
    with pytest.raises(YamlProblem) as problem:
        parse(text)
    assert words in str(problem.value)
    assert "\n" not in str(problem.value)


def test_a_bomb_is_refused_before_it_goes_off():
    started = time.process_time()
    with pytest.raises(YamlProblem):
        parse(BOMB)
    assert time.process_time() - started < 1


def test_a_file_over_the_limit_is_refused_by_its_size(tmp_path):
    (tmp_path / "big.yaml").write_bytes(b"#" * (MAX_BYTES + 7))
    with pytest.raises(YamlProblem, match="is 1048583 bytes; at most 1048576 bytes"):
        read_file(str(tmp_path / "big.yaml"))


def test_a_file_at_the_limit_is_read(tmp_path):
    (tmp_path / "big.yaml").write_bytes(b"a: b\n".ljust(MAX_BYTES, b"#"))
    assert read_file(str(tmp_path / "big.yaml")) == {"a": "b"}


def test_a_file_that_is_not_text_is_refused(tmp_path):
    (tmp_path / "image.yaml").write_bytes(b"a: \xff\xfe")
    with pytest.raises(YamlProblem, match=r"is not UTF-8 text \(byte 3\)"):
        read_file(str(tmp_path / "image.yaml"))


def test_a_byte_order_mark_is_not_part_of_the_text(tmp_path):
    (tmp_path / "windows.yaml").write_bytes(b"\xef\xbb\xbfa: b\r\n")
    assert read_file(str(tmp_path / "windows.yaml")) == {"a": "b"}
