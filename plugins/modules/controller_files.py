#!/usr/bin/python
# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Write files on the controller. This is the documentation; the work is done by the action of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: controller_files
short_description: Write files on the controller, all of them or none
version_added: 0.1.0
description:
  - Writes files on the controller in one task, however many they are. The host of the task is asked for nothing, so
    that it may be one that does not answer. Use it with C(run_once).
  - Every file is replaced at once for whoever reads it. All content is on the disk before the first file is replaced,
    so that a full disk changes nothing.
  - Files that have this content already are left alone.
  - Missing folders are made.
extends_documentation_fragment:
  - gpufleet.mig.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
  platform:
    platforms: posix
options:
  files:
    description:
      - The content of each file by its path. A relative path is looked up in O(folder).
      - Content is text. The filter C(to_nice_json) makes text of data.
    type: dict
    required: true
  folder:
    description:
      - Folder for relative paths. With it no path may lead out of it.
      - Without it that is the folder in which C(ansible-playbook) was started.
    type: str
  mark:
    description:
      - What the files begin with. A file that is there and begins otherwise was written by somebody else, and nothing
        is written then.
    type: str
  mode:
    description: Permissions of the files that are written, as an octal number.
    type: str
    default: "0644"
author:
  - the gpufleet.mig authors (@gpufleet)
"""

EXAMPLES = r"""
- name: Keep what every host said
  gpufleet.mig.controller_files:
    folder: saved
    files: >-
      {{ dict(ansible_play_hosts_all | map('regex_replace', '$', '.json')
              | zip(ansible_play_hosts_all | map('extract', hostvars, 'mig') | map('to_nice_json'))) }}
  run_once: true
"""

RETURN = r"""
msg:
  description: What is wrong, and what to do next.
  returned: on failure
  type: str
paths:
  description: The paths of all files.
  returned: success
  type: list
  elements: str
written:
  description: The paths of the files that were written, or would be in check mode.
  returned: success
  type: list
  elements: str
"""
