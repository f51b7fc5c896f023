# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read YAML that a person or a survey supplied, without letting it cost the controller more than it is worth.

This file is private to the collection gpufleet.mig and may change at any time.

A config file is plain data of a few kilobytes. Anything that is not (a bomb of aliases, a tower of brackets, a tag
that makes objects, a key given twice) is refused with one sentence, before the document is built in memory.
"""

from __future__ import annotations

import os
import typing as t

import yaml
from yaml.constructor import ConstructorError

from ansible_collections.gpufleet.mig.plugins.module_utils.engine.profiles import quoted

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 16
# NVIDIA's own file has fewer than 2,000 nodes.
MAX_NODES = 100_000
# A PCI id with its vendor has ten. Python neither reads nor writes decimal numbers of thousands of digits, and JSON,
# in which arguments reach the node, has no other.
MAX_NUMBER_LENGTH = 100

PLAIN_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "seq", "map")}


class YamlProblem(Exception):
    """The text is not the plain, small YAML that is expected. The message continues a sentence about its source."""


class _PlainLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Safe loader for plain data: a date stays text, and a key given twice is an error instead of the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[t.Any, t.Any]:
        seen: set[tuple[str, str]] = set()
        for key, _value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise YamlProblem(f"has a key that is not plain text in line {key.start_mark.line + 1}")
            if (key.tag, key.value) in seen:
                raise YamlProblem(f"has the key {quoted(key.value)} twice, again in line {key.start_mark.line + 1}")
            seen.add((key.tag, key.value))
        return t.cast("dict[t.Any, t.Any]", super().construct_mapping(node, deep=deep))

    def construct_yaml_int(self, node: yaml.ScalarNode) -> t.Any:
        _refuse_long_number(node)
        return super().construct_yaml_int(node)

    def construct_yaml_float(self, node: yaml.ScalarNode) -> t.Any:
        _refuse_long_number(node)
        return super().construct_yaml_float(node)


_PlainLoader.add_constructor("tag:yaml.org,2002:int", _PlainLoader.construct_yaml_int)
_PlainLoader.add_constructor("tag:yaml.org,2002:float", _PlainLoader.construct_yaml_float)

# A label that looks like a date must reach the module as the text it is.
_PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_file(path: str) -> t.Any:
    """Return the one document in the file as plain data. Raises YamlProblem, or OSError when it cannot be read."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise YamlProblem(f"is {max(size, len(content))} bytes; at most {MAX_BYTES} bytes (1 MiB) are read")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise YamlProblem(f"is not UTF-8 text (byte {error.start})") from None
    return parse(text)


def parse(text: str) -> t.Any:
    """Return the one document in the text as plain data. Raises YamlProblem."""
    if len(text) > MAX_BYTES:
        raise YamlProblem(f"has {len(text)} characters; at most {MAX_BYTES} (1 MiB) are read")
    try:
        # Bytes, because text from Ansible carries tags of its own, and libyaml takes no subclass of str.
        content = text.encode()
        _check_bounds(content)
        return yaml.load(content, Loader=_PlainLoader)  # nosec: _PlainLoader is a SafeLoader
    except yaml.MarkedYAMLError as error:
        raise YamlProblem(_in_words(error, text)) from None
    except yaml.YAMLError as error:
        raise YamlProblem(f"is not YAML ({_short(str(error))})") from None
    except (ValueError, LookupError) as error:
        # A value that is not of its tag, such as !!int seven or !!bool seven.
        raise YamlProblem(f"cannot be read as plain data: {_short(str(error))}") from None


def _check_bounds(content: bytes) -> None:
    """Walk the events of the parser, which builds nothing, and refuse what would grow or nest without measure.

    An alias counts as everything its anchor holds, so that a bomb is measured by what it would become.
    """
    documents = 0
    total = 0
    open_anchors: list[t.Optional[str]] = []
    totals_at_start: list[int] = []
    size_of: dict[str, int] = {}
    for event in yaml.parse(content, Loader=_PlainLoader):
        line = 1 if event.start_mark is None else event.start_mark.line + 1
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise YamlProblem(f"holds more than one document (the second starts in line {line})")
        elif isinstance(event, yaml.CollectionStartEvent):
            _refuse_tag(event.tag, line)
            open_anchors.append(event.anchor)
            totals_at_start.append(total)
            total += 1
            if len(open_anchors) > MAX_DEPTH:
                raise YamlProblem(f"is nested more than {MAX_DEPTH} levels deep in line {line}")
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, start = open_anchors.pop(), totals_at_start.pop()
            if anchor is not None:
                size_of[anchor] = total - start
        elif isinstance(event, yaml.ScalarEvent):
            _refuse_tag(event.tag, line)
            total += 1
            if event.anchor is not None:
                size_of[event.anchor] = 1
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor in open_anchors:
                raise YamlProblem(f"has the alias {quoted(event.anchor)} inside its own anchor in line {line}")
            total += size_of.get(event.anchor or "", 1)
        if total > MAX_NODES:
            raise YamlProblem(f"grows to more than {MAX_NODES} values by its aliases and entries (line {line})")


def _refuse_tag(tag: t.Optional[str], line: int) -> None:
    if tag is not None and tag != "!" and tag not in PLAIN_TAGS:
        raise YamlProblem(
            f"uses the tag {quoted(tag)} in line {line}; only plain text, numbers, lists and mappings are read"
        )


def _refuse_long_number(node: yaml.ScalarNode) -> None:
    if len(node.value) > MAX_NUMBER_LENGTH:
        raise YamlProblem(
            f"has the number {quoted(node.value)} in line {node.start_mark.line + 1}; at most {MAX_NUMBER_LENGTH}"
            " characters of a number are read"
        )


def _short(text: str) -> str:
    """What PyYAML says, which may hold any text of the document, as one line of a message."""
    text = " ".join(text.split())
    return text if len(text) <= 200 else f"{text[:200]}..."


def _in_words(error: yaml.MarkedYAMLError, text: str) -> str:
    mark = error.problem_mark or error.context_mark
    line = mark.line if mark is not None else 0
    lines = text.splitlines()
    if line < len(lines) and "\t" in lines[line]:
        return f"is not YAML: line {line + 1} has a tab; indent with spaces"
    if isinstance(error, ConstructorError):
        return f"cannot be read as plain data in line {line + 1}: {_short(error.problem or 'it is not')}"
    return f"is not YAML: {_short(error.problem or error.context or 'it ends early')} in line {line + 1}"
