# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether what was asked of the API is what examples/kubernetes/rbac.yml allows."""

from __future__ import annotations

import typing as t
from pathlib import Path

import yaml

from ansible_collections.gpufleet.mig.tests.kubernetes.api import Request

RULES = Path(__file__).resolve().parents[2] / "examples/kubernetes/rbac.yml"

Right = tuple[str, str, str]


def allowed() -> set[Right]:
    """Verb, API group and resource of all rules, subresources as ``pods/eviction``."""
    return {
        (verb, group, resource)
        for role in yaml.safe_load(RULES.read_text())["items"]
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def needed(request: Request) -> Right | None:
    """What a request takes; None for what everybody may ask, such as the version."""
    words = request.path.strip("/").split("/")
    if words[0] == "api":
        group, rest = "", words[2:]
    elif words[0] == "apis":
        group, rest = (words[1:2] or [""])[0], words[3:]
    else:
        return None
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        rest = rest[2:]
    if not rest:
        return None
    return request.verb, group, "/".join([rest[0], *rest[2:3]])


def beyond(requests: t.Iterable[Request]) -> set[Right]:
    """What was asked for and is not allowed."""
    return {right for request in requests for right in [needed(request)] if right} - allowed()
