# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A call has its answer or one sentence why not, in a bounded time and of a bounded size, whatever the server does."""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import time

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.grpc import http2
from ansible_collections.gpufleet.mig.plugins.module_utils.grpc.errors import (
    CallError,
    Malformed,
    NobodyListens,
    NotAllowed,
    Refused,
    TooLate,
)
from ansible_collections.gpufleet.mig.tests.unit.plugins.module_utils.grpc.stand_in import (
    HEADERS,
    OK,
    answer,
    frame,
    literal,
    message,
    recorded,
    sends,
    serving,
)

RECORDED = recorded()
ENDED = http2.END_HEADERS | http2.END_STREAM
SETTINGS = frame(http2.SETTINGS, stream=0)
BEGINNING = SETTINGS + frame(http2.HEADERS, HEADERS, http2.END_HEADERS)
END = frame(http2.HEADERS, OK, ENDED)


def call(path, timeout=20.0, most_bytes=1 << 20):
    return http2.call(path, "/v1.PodResourcesLister/List", b"", timeout=timeout, most_bytes=most_bytes)


def answered(data, **options):
    """What a call to a server that sends these bytes comes to."""
    with serving(sends(data)) as server:
        return call(server.path, **options)


# --- real servers ----------------------------------------------------------------------------------------------------


def test_real_servers_of_two_makes_give_the_same_answer():
    answers = {answered(RECORDED[name]) for name in ("go-list", "go-trailers", "py-list")}
    assert [len(each) for each in answers] == [754]
    assert answered(RECORDED["go-alloc"]) == answered(RECORDED["py-alloc"])


@pytest.mark.parametrize(
    ("name", "status", "said"),
    [
        ("go-disabled", "UNKNOWN", "API GetAllocatableResources disabled"),
        ("py-disabled", "UNKNOWN", "API GetAllocatableResources disabled"),
        ("go-exhausted", "RESOURCE_EXHAUSTED", "rejected by rate limit: 100 % gebührenpflichtig"),
        (
            "go-unimplemented",
            "UNIMPLEMENTED",
            "unknown method GetAllocatableResources for service v1.PodResourcesLister",
        ),
        ("py-unimplemented", "UNIMPLEMENTED", "Method not found!"),
    ],
)
def test_what_a_real_server_refuses_has_its_name_and_its_words(name, status, said):
    with pytest.raises(Refused) as caught:
        answered(RECORDED[name])
    assert (caught.value.name, caught.value.message) == (status, said)


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_a_real_answer_that_is_cut_off_anywhere_is_no_answer(name):
    whole = RECORDED[name]
    # The goodbye after the last frame of the call is not needed; of the rest everything is.
    for end in range(0, len(whole) - 60, 11):

        def hang_up(peer, part=whole[:end]):
            peer.request()
            peer.send(part)
            peer.close()

        with serving(hang_up) as server, pytest.raises(CallError):
            call(server.path)


def test_the_request_is_one_that_every_server_of_grpc_takes():
    with serving(sends(answer(b""))) as server:
        assert http2.call(server.path, "/v1.Service/Method", b"abc", timeout=20, most_bytes=10) == b""
    settings, headers, data, *_rest = server.peers[0].frames
    assert (settings.kind, settings.stream, settings.content) == (http2.SETTINGS, 0, struct.pack(">HI", 2, 0))
    assert (headers.kind, headers.flags, headers.stream) == (http2.HEADERS, http2.END_HEADERS, 1)
    assert headers.content == literal(
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/v1.Service/Method"),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        ("user-agent", "gpufleet-mig"),
    )
    assert (data.kind, data.flags, data.content) == (http2.DATA, http2.END_STREAM, message(b"abc"))


# --- what a server may do --------------------------------------------------------------------------------------------


def test_a_large_answer_comes_in_as_the_server_is_told_that_there_is_room():
    content = bytes(range(256)) * 2000

    def obey_the_windows(peer):
        peer.request()
        peer.send(BEGINNING)
        room = {0: 65535, 1: 65535}
        left = message(content)
        while left:
            size = min(*room.values(), 16384, len(left))
            if size:
                peer.send(frame(http2.DATA, left[:size]))
                left = left[size:]
                room = {stream: more - size for stream, more in room.items()}
            else:
                update = peer.frame()
                if update.kind == http2.WINDOW_UPDATE:
                    room[update.stream] += int.from_bytes(update.content, "big")
        peer.send(END)

    with serving(obey_the_windows) as server:
        assert call(server.path) == content


def test_padding_counts_for_the_window_and_not_for_the_answer():
    padded = bytes([10]) + message(b"abc") + bytes(10)
    with serving(sends(BEGINNING + frame(http2.DATA, padded, http2.PADDED) + END)) as server:
        assert call(server.path) == b"abc"
    updates = [each for each in server.peers[0].frames if each.kind == http2.WINDOW_UPDATE]
    assert [(each.stream, int.from_bytes(each.content, "big")) for each in updates] == [(0, 19), (1, 19)]


def test_pings_and_settings_are_answered():
    ping = frame(http2.PING, b"12345678", stream=0)
    data = BEGINNING + ping + frame(http2.PING, b"87654321", http2.ACK, 0) + frame(http2.SETTINGS, b"", http2.ACK, 0)
    with serving(sends(data + frame(http2.DATA, message(b"")) + END)) as server:
        assert call(server.path) == b""
    answers = [(each.kind, each.flags, each.content) for each in server.peers[0].frames[3:]]
    assert (http2.SETTINGS, http2.ACK, b"") in answers
    assert [each for each in answers if each[0] == http2.PING] == [(http2.PING, http2.ACK, b"12345678")]


def test_a_message_in_the_smallest_pieces_is_put_together():
    pieces = b"".join(frame(http2.DATA, bytes([byte])) for byte in message(b"a message"))
    assert answered(BEGINNING + frame(http2.DATA) + pieces + END) == b"a message"


def test_headers_in_several_frames_with_padding_and_priority_are_put_together():
    block = bytes([3]) + struct.pack(">IB", 0, 15) + HEADERS[:5] + bytes(3)
    headers = frame(http2.HEADERS, block, http2.PADDED | http2.HAS_PRIORITY)
    headers += frame(http2.CONTINUATION, HEADERS[5:9]) + frame(http2.CONTINUATION, HEADERS[9:], http2.END_HEADERS)
    assert answered(SETTINGS + headers + frame(http2.DATA, message(b"abc")) + END) == b"abc"


def test_what_is_none_of_our_business_is_passed_over():
    interim = frame(http2.HEADERS, literal((":status", "103")), http2.END_HEADERS)
    others = (
        frame(http2.WINDOW_UPDATE, struct.pack(">I", 5), stream=0)
        + frame(http2.PRIORITY, bytes(5), stream=7)
        + frame(0xEE, b"of a later protocol", 0xFF, 99)
    )
    data = SETTINGS + others + interim + BEGINNING[len(SETTINGS) :] + others + frame(http2.DATA, message(b"abc")) + END
    assert answered(data) == b"abc"


def test_a_server_that_shuts_down_finishes_the_call_first():
    farewell = frame(http2.GOAWAY, struct.pack(">II", 1, 0), stream=0)
    assert answered(BEGINNING + farewell + frame(http2.DATA, message(b"abc")) + END) == b"abc"


def test_a_server_that_closes_as_soon_as_it_has_answered_has_answered():
    def leave(peer):
        peer.request()
        peer.send(BEGINNING + frame(http2.DATA, message(b"abc")) + END)
        peer.close()

    for _again in range(20):
        with serving(leave) as server:
            assert call(server.path) == b"abc"


# --- what it may not do ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "name", "said"),
    [
        (frame(http2.RST_STREAM, struct.pack(">I", 7)), "REFUSED_STREAM", "gave the call up"),
        (frame(http2.RST_STREAM, struct.pack(">I", 99)), "error 99", "gave the call up"),
        (frame(http2.GOAWAY, struct.pack(">II", 0, 0), stream=0), "NO_ERROR", "going away"),
        (frame(http2.GOAWAY, struct.pack(">II", 1, 11) + b"too many", stream=0), "ENHANCE_YOUR_CALM", "too many"),
        (frame(http2.HEADERS, literal((":status", "404")), ENDED), "HTTP 404", "no server of gRPC"),
        (
            frame(http2.HEADERS, HEADERS + literal(("grpc-status", "14"), ("grpc-message", "not%20yet")), ENDED),
            "UNAVAILABLE",
            "not yet",
        ),
        (frame(http2.HEADERS, HEADERS + literal(("grpc-status", "77")), ENDED), "status 77", "status 77"),
    ],
)
def test_a_call_that_the_server_ends_has_its_reason(data, name, said):
    with pytest.raises(Refused, match=said) as caught:
        answered(SETTINGS + data)
    assert caught.value.name == name


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "frame of"),
        (frame(http2.PING, bytes(8), stream=0), "does not speak HTTP/2"),
        (frame(http2.SETTINGS, b"", http2.ACK, 0), "does not speak HTTP/2"),
        (frame(http2.SETTINGS, bytes(5), stream=0), "settings"),
        (frame(http2.SETTINGS, stream=1), "settings"),
        (SETTINGS + b"\xff\xff\xff" + bytes(6), "frame of 16777215 bytes"),
        (SETTINGS + frame(http2.PING, bytes(7), stream=0), "ping"),
        (SETTINGS + frame(http2.GOAWAY, bytes(7), stream=0), "farewell"),
        (SETTINGS + frame(http2.RST_STREAM, bytes(3)), "end of a stream"),
        (SETTINGS + frame(http2.RST_STREAM, bytes(4), stream=3), "stream 3"),
        (SETTINGS + frame(http2.PUSH_PROMISE, bytes(4)), "kind 5"),
        (SETTINGS + frame(http2.CONTINUATION, HEADERS, http2.END_HEADERS), "kind 9"),
        (SETTINGS + frame(http2.DATA, message(b"")), "without headers"),
        (SETTINGS + frame(http2.HEADERS, literal((":status", "200")), http2.END_HEADERS), "not one of gRPC"),
        (SETTINGS + frame(http2.HEADERS, b"\xff", http2.END_HEADERS), "too early"),
        (SETTINGS + frame(http2.HEADERS, b"\x05ab", http2.END_HEADERS | http2.PADDED), "more padding"),
        (SETTINGS + frame(http2.HEADERS, b"ab", http2.END_HEADERS | http2.HAS_PRIORITY), "wrong form"),
        (SETTINGS + frame(http2.HEADERS, HEADERS[:4]) + frame(http2.PING, bytes(8), stream=0), "interrupted"),
        (SETTINGS + frame(http2.HEADERS, HEADERS[:4]) + frame(http2.CONTINUATION, b"", 4, 3), "interrupted"),
        (SETTINGS + frame(http2.HEADERS, HEADERS + OK, ENDED), "no message"),
        (SETTINGS + frame(http2.HEADERS, HEADERS, ENDED), "without a status"),
        (BEGINNING + frame(http2.DATA, message(b""), stream=3), "stream 3"),
        (BEGINNING + frame(http2.DATA, message(b""), http2.END_STREAM), "without a status"),
        (BEGINNING + frame(http2.DATA, b"", http2.PADDED), "more padding"),
        (BEGINNING + frame(http2.HEADERS, OK, http2.END_HEADERS), "twice"),
        (BEGINNING + END, "no message"),
        (BEGINNING + frame(http2.DATA, message(b"")) + frame(http2.HEADERS, HEADERS, ENDED), "without a status"),
        (BEGINNING + frame(http2.DATA, b"\x01" + message(b"")[1:]) + END, "compressed"),
        (BEGINNING + frame(http2.DATA, message(b"") + b"x") + END, "says that it has 0"),
        (BEGINNING + frame(http2.DATA, message(b"abc")[:-1]) + END, "says that it has 3"),
        (BEGINNING + frame(http2.DATA, message(b"") * 2) + END, "says that it has 0"),
    ],
)
def test_what_the_protocol_does_not_allow_ends_the_call(data, why):
    with pytest.raises(Malformed, match=why):
        answered(data)


# --- bounds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [99, 100, 101])
def test_an_answer_of_more_than_was_agreed_to_is_refused(size):
    data = BEGINNING + frame(http2.DATA, message(bytes(size))) + END
    if size <= 100:
        assert answered(data, most_bytes=100) == bytes(size)
    else:
        with pytest.raises(Malformed, match="more than 100 bytes"):
            answered(data, most_bytes=100)


def endless(beginning, part):
    """A server that sends the same again and again, until the client has had enough."""

    def play(peer):
        peer.request()
        peer.send(beginning)
        for _each in itertools.count():
            peer.send(part)

    return play


@pytest.mark.parametrize(
    ("beginning", "part", "why"),
    [
        (BEGINNING, frame(http2.DATA, bytes(16384)), "the answer has more than"),
        (SETTINGS + frame(http2.HEADERS), frame(http2.CONTINUATION, bytes(16384)), "bytes of headers"),
        (SETTINGS, frame(0xEE, bytes(16384)), "bytes came"),
        (BEGINNING, frame(http2.WINDOW_UPDATE, bytes(4), stream=0) * 1000, "bytes came"),
    ],
    ids=["data", "headers", "frames of a later protocol", "window updates"],
)
def test_a_server_that_does_not_stop_is_left(beginning, part, why):
    with serving(endless(beginning, part)) as server, pytest.raises(Malformed, match=why):
        call(server.path, most_bytes=50000)


def test_a_server_that_takes_the_call_and_never_answers_costs_the_time_that_was_given():
    with serving(lambda peer: peer.request()) as server:
        started = time.monotonic()
        with pytest.raises(TooLate, match="after 0.3 seconds"):
            call(server.path, timeout=0.3)
        assert 0.3 <= time.monotonic() - started < 5


def test_a_server_that_says_a_little_now_and_then_gets_no_more_time():
    gone = []

    def trickle(peer):
        peer.request()
        peer.send(SETTINGS)
        with contextlib.suppress(OSError):
            while True:
                peer.send(frame(http2.PING, bytes(8), stream=0))
                peer.frame()
        gone.append(True)

    with serving(trickle) as server, pytest.raises((TooLate, Malformed)):
        call(server.path, timeout=0.3)
    assert gone


def test_a_server_that_accepts_nobody_any_more_does_not_keep_us_waiting():
    with contextlib.ExitStack() as stack, serving() as server:
        full = f"{server.path}.full"
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(full)
        listener.listen(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
                waiting.setblocking(False)
                waiting.connect(full)
        with pytest.raises(TooLate, match="takes no more"):
            call(full)


def test_a_connection_that_is_closed_at_once_is_no_answer():
    with serving(lambda peer: peer.close()) as server, pytest.raises(CallError, match="connection"):
        call(server.path)


def test_no_socket_and_a_socket_without_a_process_are_told_apart(tmp_path):
    with pytest.raises(NobodyListens) as caught:
        call(str(tmp_path / "none"))
    assert caught.value.missing
    with serving() as server:
        left = f"{server.path}.left"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(left)
        with pytest.raises(NobodyListens) as caught:
            call(left)
    assert not caught.value.missing


def test_a_socket_that_may_not_be_opened_is_said_to_be_so(monkeypatch):
    def refuse(_self, _path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(http2.socket.socket, "connect", refuse)
    with pytest.raises(NotAllowed):
        call("/var/lib/kubelet/pod-resources/kubelet.sock")


def test_a_path_that_cannot_be_one_of_a_socket_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (f"/tmp/{'x' * 200}", str(tmp_path)):
        with pytest.raises(CallError):
            call(path)
