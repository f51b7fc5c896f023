# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Headers are read as RFC 7541 says, and nothing that it does not allow passes for a header."""

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.grpc import hpack
from ansible_collections.gpufleet.mig.plugins.module_utils.grpc.errors import Malformed


def decode(*blocks):
    """What each block says, read by one decoder."""
    decoder = hpack.Decoder()
    return [decoder.decode(bytes.fromhex(block)) for block in blocks]


# RFC 7541, appendix C.5 and C.6: three answers in one connection, whose table has room for 256 bytes.
NEWER = ("Mon, 21 Oct 2013 20:13:22 GMT", "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1")
FIRST = [
    (":status", "302"),
    ("cache-control", "private"),
    ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
    ("location", "https://www.example.com"),
]
# Each begins with the size of the table.
PLAIN = [
    (
        "3fe1014803333032580770726976617465611d4d6f6e2c203231204f637420323031332032303a31333a323120474d546e1768747470"
        "733a2f2f7777772e6578616d706c652e636f6d"
    ),
    "4803333037c1c0bf",
    (
        "88c1611d4d6f6e2c203231204f637420323031332032303a31333a323220474d54c05a04677a69707738666f6f3d4153444a4b48514b"
        "425a584f5157454f50495541585157454f49553b206d61782d6167653d333630303b2076657273696f6e3d31"
    ),
]
HUFFMAN = [
    (
        "3fe101488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f0b97c8e9ae82"
        "ae43d3"
    ),
    "4883640effc1c0bf",
    (
        "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335dfdfcd5b3960d5af2708"
        "7f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007"
    ),
]


@pytest.mark.parametrize("blocks", [PLAIN, HUFFMAN], ids=["plain", "Huffman"])
def test_the_examples_of_the_rfc(blocks):
    first, second, third = decode(*blocks)
    assert first == FIRST
    assert second == [(":status", "307"), *FIRST[1:]]
    assert third == [
        (":status", "200"),
        ("cache-control", "private"),
        ("date", NEWER[0]),
        ("location", "https://www.example.com"),
        ("content-encoding", "gzip"),
        ("set-cookie", NEWER[1]),
    ]


def test_an_entry_that_had_no_room_any_more_is_not_there():
    """The example's table keeps the newest headers only; the first :status is out by its third answer."""
    decoder = hpack.Decoder()
    for block in PLAIN:
        decoder.decode(bytes.fromhex(block))
    assert decoder.decode(bytes([0x80 | 62])) == [("set-cookie", NEWER[1])]
    with pytest.raises(Malformed, match="65"):
        decoder.decode(bytes([0x80 | 65]))


def test_every_byte_has_a_huffman_code_of_its_own():
    codes = hpack._codes()
    assert sorted(codes.values()) == list(range(257))
    for (length, code), symbol in codes.items():
        assert not any((shorter, code >> length - shorter) in codes for shorter in range(1, length)), symbol


def test_what_is_encoded_is_decoded():
    headers = [(":path", "/v1.PodResourcesLister/List"), ("te", "trailers"), ("empty", "")]
    assert hpack.Decoder().decode(hpack.encode(headers)) == headers


@pytest.mark.parametrize(
    ("block", "why"),
    [
        ("80", "entry 0"),
        ("be", "entry 62"),
        ("ffffffffffff7f", "too large"),
        ("ff", "too early"),
        ("00", "too early"),
        ("000261", "too early"),
        ("3fe21f", "larger table"),
        ("8820", "after its first header"),
        ("0081ff00", "middle of a Huffman code"),
        ("0084ffffffff00", "stands for nothing"),
        ("00811800", "middle of a Huffman code"),
    ],
    ids=lambda value: value.replace(" ", "-"),
)
def test_what_no_encoder_writes_is_refused(block, why):
    with pytest.raises(Malformed, match=why):
        decode(block)


def test_a_huffman_code_ends_with_the_first_bits_of_the_end_mark_only():
    assert hpack.decode_huffman(bytes([0b00011_111])) == b"a"
    for wrong in (0b00011_110, 0b00011_000):
        with pytest.raises(Malformed):
            hpack.decode_huffman(bytes([wrong]))
    with pytest.raises(Malformed):
        hpack.decode_huffman(bytes([0b00011_111, 0xFF]))
