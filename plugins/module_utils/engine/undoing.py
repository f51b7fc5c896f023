# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The wish to have again what a node had before its last change, from the node's own record.

This file is private to the collection gpufleet.mig and may change at any time.
"""

from __future__ import annotations

import typing as t

from . import layouts, state
from .model import Node, Wanted, WishError

SOURCE = "previous"


def resolve(node: Node, places: state.Places, of_label: str = "", *, gpus: t.Any = None) -> Wanted:
    """What was there before the last change. A node whose last change was to go back wishes for what it has then.

    With ``of_label`` only a change to this label is taken back: a node whose last change was another one, or that never
    had one, wishes for nothing. Raises WishError where nothing is recorded, and what layouts.resolve raises.
    """
    last = state.read_wanted(places)
    if last is not None and last.source == SOURCE:
        return _layout(node, last, gpus)
    if of_label and (last is None or last.label != of_label):
        return Wanted(last.label if last else "", SOURCE, {})
    previous = state.read_previous(places)
    if previous is None:
        raise WishError(
            "This node has no record of a layout before its last change: name the wanted one by a label or a layout."
        )
    return _layout(node, previous, gpus)


def _layout(node: Node, saved: state.Persisted, gpus: t.Any) -> Wanted:
    wanted = layouts.resolve(node, {"gpus": list(saved.gpus)}, gpus=gpus)
    return wanted._replace(label=saved.label, source=SOURCE)
