# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What an image wants of GPUs that it has not met, and what that is once it has met them.

This file is private to the collection gpufleet.mig and may change at any time.
"""

from __future__ import annotations

import typing as t

from . import configs, kinds
from .model import Node, Wanted
from .state import Wish


def resolve(node: Node, wish: Wish, gpus: t.Any = None) -> Wanted:
    """The wish in terms of this node; ``gpus`` narrows it to some, as configs.resolve takes them. Raises WishError."""
    options: dict[str, t.Any] = {
        "label": wish.label or None,
        "gpus": gpus,
        "configs": wish.configs or None,
        "unlisted": wish.unlisted,
        "allow_empty": wish.allow_empty,
        "expected_gpus": wish.expected_gpus,
    }
    if wish.label_by_gpu:
        return kinds.resolve(node, wish.label_by_gpu, **options)
    return configs.resolve(node, **options)


def check(wish: Wish) -> None:
    """Refuse what no GPU could make right, such as a label that nobody knows. Raises WishError.

    Whether a GPU offers a profile is not looked at: there is none to ask.
    """
    nowhere = Node(())
    resolve(nowhere, wish._replace(expected_gpus=None))
    for label in dict.fromkeys((*([wish.label] if wish.label else ()), *wish.label_by_gpu.values())):
        configs.resolve(nowhere, label=label, configs=wish.configs or None)
