# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""CDI specifications as data, with the standard library alone: JSON, and as much of YAML as NVIDIA's tools write.

This file is private to the collection gpufleet.mig and may change at any time.

A node has no YAML library that one could count on, and ``nvidia-ctk cdi list`` tells names and not the device files
behind them, of which some may be missing. What nvidia-ctk writes is plain: blocks of mappings and sequences, one scalar
a line. That is read here. Everything else is refused and never guessed: whoever reads half a specification
cannot say that a device is in it.
"""

from __future__ import annotations

import json
import re
import typing as t

_LONGEST = 16 * 1024 * 1024
_DEEPEST = 32
_KEY = re.compile(r"(?P<key>[A-Za-z_][A-Za-z0-9_.-]*|\"(?:[^\"\\]|\\.)*\"|'(?:[^']|'')*'):(?: +(?P<value>\S.*))?")
_NUMBER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
# What a plain scalar begins with when it is none: an anchor, a tag, a block of text, a comment, a flow collection.
_NOT_PLAIN = tuple("&*!|>%@`#,[]{}?\"'")
_WORDS: dict[str, t.Any] = {"true": True, "false": False, "null": None, "~": None, "[]": [], "{}": {}}


class Unreadable(ValueError):
    """It is no JSON, and no YAML of the kind that is read here; the message says where."""


class _Line(t.NamedTuple):
    number: int
    indent: int
    text: str


def parse(text: str) -> t.Any:
    """The data in a specification. Raises Unreadable."""
    if len(text) > _LONGEST:
        raise Unreadable(f"it has more than {_LONGEST} characters")
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Unreadable(f"it is no JSON: {error}") from None
    lines = _lines(text)
    if not lines:
        return None
    value, rest = _node(lines, 0, 0)
    if rest < len(lines):
        raise _odd(lines[rest])
    return value


def _lines(text: str) -> list[_Line]:
    """The lines that say something."""
    found: list[_Line] = []
    for number, line in enumerate(text.split("\n"), 1):
        said = line.rstrip()
        body = said.lstrip(" ")
        if not body or body.startswith("#") or (body == "---" and not found):
            continue
        found.append(_Line(number, len(said) - len(body), body))
    return found


def _odd(line: _Line) -> Unreadable:
    return Unreadable(f"line {line.number} is not written as nvidia-ctk writes")


def _node(lines: list[_Line], at: int, depth: int) -> tuple[t.Any, int]:
    """The mapping or sequence that begins at this line, and the line after it."""
    if depth > _DEEPEST:
        raise _odd(lines[at])
    if _is_item(lines[at].text):
        return _sequence(lines, at, depth)
    if _KEY.fullmatch(lines[at].text):
        return _mapping(lines, at, depth)
    raise _odd(lines[at])


def _is_item(text: str) -> bool:
    return text == "-" or text.startswith("- ")


def _sequence(lines: list[_Line], at: int, depth: int) -> tuple[list[t.Any], int]:
    indent, found = lines[at].indent, []
    while at < len(lines) and lines[at].indent == indent and _is_item(lines[at].text):
        line = lines[at]
        body = line.text[1:].lstrip(" ")
        if _is_item(body) or not body:
            raise _odd(line)
        if _KEY.fullmatch(body):
            # The first key of a mapping stands on the line of its dash; the others are right below it.
            lines[at] = _Line(line.number, indent + len(line.text) - len(body), body)
            value, at = _mapping(lines, at, depth + 1)
        else:
            value, at = _scalar(body, line), at + 1
        found.append(value)
    if at < len(lines) and lines[at].indent > indent:
        raise _odd(lines[at])
    return found, at


def _mapping(lines: list[_Line], at: int, depth: int) -> tuple[dict[str, t.Any], int]:
    indent = lines[at].indent
    found: dict[str, t.Any] = {}
    while at < len(lines) and lines[at].indent == indent and not _is_item(lines[at].text):
        line = lines[at]
        pair = _KEY.fullmatch(line.text)
        if pair is None:
            raise _odd(line)
        key = _key(pair["key"], line)
        if key in found:
            raise Unreadable(f"line {line.number} has {key} a second time")
        at += 1
        if pair["value"] is not None:
            found[key] = _scalar(pair["value"], line)
        elif at < len(lines) and (
            lines[at].indent > indent or (lines[at].indent == indent and _is_item(lines[at].text))
        ):
            found[key], at = _node(lines, at, depth + 1)
        else:
            found[key] = None
    if at < len(lines) and lines[at].indent > indent:
        raise _odd(lines[at])
    return found, at


def _key(text: str, line: _Line) -> str:
    return str(_scalar(text, line)) if text[0] in "\"'" else text


def _scalar(text: str, line: _Line) -> t.Any:
    if text in _WORDS:
        value = _WORDS[text]
        return type(value)() if isinstance(value, (list, dict)) else value
    if text.startswith('"'):
        try:
            value = json.loads(text)
        except ValueError:
            raise _odd(line) from None
        return value
    if text.startswith("'"):
        if not re.fullmatch(r"'(?:[^']|'')*'", text):
            raise _odd(line)
        return text[1:-1].replace("''", "'")
    if text.startswith(_NOT_PLAIN) or ": " in text or " #" in text or text.endswith(":"):
        raise _odd(line)
    return int(text) if _NUMBER.fullmatch(text) else text
