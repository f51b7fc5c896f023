# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Reading a node without opening NVML in one's own process.

This file is private to the collection gpufleet.mig and may change at any time. It is all that a node needs that is as
wanted, so it imports no more than that.
"""

from __future__ import annotations

import typing as t

from . import bounded, driver
from .bounded import Watch
from .model import Node, Orders

Opener = t.Callable[[Watch], t.ContextManager[driver.Session]]

# What is done where the caller has nothing to say.
NO_ORDERS = Orders()


def observe(opener: Opener, orders: Orders = NO_ORDERS, *, with_holders: bool = False) -> Node:
    """Read the node in a child, so that a driver that does not answer is an error and not a hang.

    ``with_holders`` adds who has it open beside NVML's own lists, and what is reserved: plans need that, a comparison
    does not. Raises DriverError, bounded.NoAnswer.
    """
    return bounded.ask(lambda watch: read(opener, watch, orders, with_holders), orders.operation_timeout)


def read(opener: Opener, watch: Watch, orders: Orders, with_holders: bool, tolerant: bool = False) -> Node:
    """As observe(), in the process that calls it.

    A reservation of a device that is not there is an error, unless ``tolerant``: the change may have taken it already.
    Neither is it one while a GPU does not answer, which may have that device and is what has to be said.
    """
    with opener(watch) as session:
        node = session.read_node()
    if with_holders:
        from . import holders  # only what is to be changed pays for it

        reservations = holders.reservations_of(orders.reservations)
        tolerant = tolerant or any(gpu.problems for gpu in node.gpus)
        found = holders.survey(watch)
        node = holders.attach(node, found.opened, reservations, watch=watch, tolerant=tolerant)
        node = node._replace(unseen=found.unseen)
        watch.idle()
    return node
