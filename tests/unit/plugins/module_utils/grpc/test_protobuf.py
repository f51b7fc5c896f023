# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Messages are read by the numbers of their fields; what has no meaning is passed over, what is broken is refused."""

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.grpc import protobuf
from ansible_collections.gpufleet.mig.plugins.module_utils.grpc.errors import Malformed


def test_fields_of_every_kind_are_read_in_order():
    message = bytes.fromhex("08ac0212016119000000000000f03f2501000000120162a80601")
    one = int.from_bytes(bytes.fromhex("000000000000f03f"), "little")
    assert list(protobuf.fields(message)) == [(1, 300), (2, b"a"), (3, one), (4, 1), (2, b"b"), (101, 1)]


def test_of_a_text_that_is_there_twice_the_last_counts_and_of_none_it_is_empty():
    message = bytes.fromhex("0a01610a0162")
    assert protobuf.texts(message, 1) == ("a", "b")
    assert protobuf.text(message, 1) == "b"
    assert protobuf.text(message, 2) == ""


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ("0a", "number without an end"),
        ("0a05616263", "middle of a field"),
        ("0affffffffffffffffff7f", "middle of a field"),
        ("08" + "80" * 10 + "01", "number without an end"),
        ("0901020304", "middle of a field"),
        ("0d010203", "middle of a field"),
        ("0b0c", "unknown kind 3"),
        ("0f", "unknown kind 7"),
        ("00", "without a number"),
    ],
)
def test_a_broken_message_is_refused(message, why):
    with pytest.raises(Malformed, match=why):
        list(protobuf.fields(bytes.fromhex(message)))


def test_a_number_where_a_text_belongs_is_refused():
    with pytest.raises(Malformed, match="field 1"):
        protobuf.text(bytes.fromhex("0801"), 1)


def test_bytes_that_are_no_text_are_refused():
    with pytest.raises(Malformed, match="no text"):
        protobuf.text(bytes.fromhex("0a01ff"), 1)
