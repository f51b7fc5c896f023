# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A specification is read as a whole, as a YAML library reads it, or refused; never in part."""

from __future__ import annotations

import json

import pytest
import yaml

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import cdi_yaml
from ansible_collections.gpufleet.mig.tests.unit.plugins.module_utils.engine import fake_nvidia_ctk

# With the indentation of version 1.18 and later of nvidia-ctk, and of those before, which had none for sequences.
LATER = """---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
    - name: "0:0"
      containerEdits:
        deviceNodes:
            - path: /dev/nvidia0
              hostPath: /run/nvidia/driver/dev/nvidia0
              major: 195
              fileMode: 438
            - path: /dev/nvidia-caps/nvidia-cap66
    - name: MIG-3e1f1e2c-5a4b-5c6d-8e7f-001122334455
      containerEdits:
        deviceNodes:
            - path: /dev/nvidia0
containerEdits:
    env:
        - NVIDIA_CTK_LIBCUDA_DIR=/lib/x86_64-linux-gnu
        - 'NAME=it''s'
    hooks:
        - hookName: createContainer
          args:
            - nvidia-cdi-hook
            - --link
            - libcuda.so.1::/lib/libcuda.so
          env: []
    annotations: {}
"""
EARLIER = """cdiVersion: 0.5.0
containerEdits:
  deviceNodes:
  - path: /dev/nvidiactl
  mounts:
  - containerPath: /usr/bin/nvidia-smi
    options:
    - ro
    - nosuid
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: "0"
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia1
  name: all
kind: nvidia.com/gpu
"""


@pytest.mark.parametrize("text", [LATER, EARLIER, "", "a:\nb:\n    - 1\n    - -5\n    - true\n    - null\n    - ~\n"])
def test_what_nvidia_ctk_writes_is_read_as_a_library_reads_it(text):
    assert cdi_yaml.parse(text) == yaml.safe_load(text)


def test_json_is_read_in_a_file_of_any_name():
    data = yaml.safe_load(LATER)
    assert cdi_yaml.parse(json.dumps(data)) == data


def test_the_stand_in_for_nvidia_ctk_writes_what_a_library_reads():
    data = yaml.safe_load(LATER)
    data["containerEdits"] = {"env": ["A=b"]}
    text = fake_nvidia_ctk.as_yaml(data)
    assert yaml.safe_load(text) == cdi_yaml.parse(text) == data


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("kind: nvidia.com/gpu\ndevices: [{name: a}]\n", 2),
        ("kind: *other\n", 1),
        ("kind: &name x\n", 1),
        ("kind: !tag x\n", 1),
        ("kind: |\n  text\n", 1),
        ("kind: a\n  folded\n", 2),
        ("kind: a # a comment\n", 1),
        ("devices:\n- - a\n", 2),
        ("devices:\n-\n  name: a\n", 2),
        ("devices:\n- name: a\n name: b\n", 3),
        ("devices:\n\t- name: a\n", 2),
        ('kind: "a\n', 1),
        ("kind: 'a\n", 1),
        ("text\n", 1),
        ("kind: a\n---\nkind: b\n", 2),
        ("- a\nkind: b\n", 2),
    ],
)
def test_what_is_written_otherwise_is_refused_with_its_line(text, line):
    with pytest.raises(cdi_yaml.Unreadable, match=f"line {line} is not written as nvidia-ctk writes"):
        cdi_yaml.parse(text)


def test_a_key_that_is_there_twice_is_refused():
    with pytest.raises(cdi_yaml.Unreadable, match="line 2 has kind a second time"):
        cdi_yaml.parse("kind: a\nkind: b\n")


def test_broken_json_is_refused():
    with pytest.raises(cdi_yaml.Unreadable, match="it is no JSON"):
        cdi_yaml.parse('{"kind": ')


def test_what_is_too_deep_or_too_long_is_refused():
    with pytest.raises(cdi_yaml.Unreadable):
        cdi_yaml.parse("".join(f"{' ' * depth}a:\n" for depth in range(100)))
    with pytest.raises(cdi_yaml.Unreadable, match="characters"):
        cdi_yaml.parse("a" * (cdi_yaml._LONGEST + 1))
