# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A process of a user that holds a GPU or an instance until it is killed.

    sim-hold --gpu I [--gi ID [--ci ID]] [--hidden | --graphics | --client] [--user NAME] [--name TEXT] [--memory MIB]

It has the device files open that CUDA would have open, is in the lists of the driver (unless hidden), and says so on a
line of its own when all that is done: ``holds gpu 0 gi 1 ci 0 as process 4711``.
"""

from __future__ import annotations

import argparse
import os
import pwd
import signal
import sys

import simulated
import stand_in


def main() -> int:
    options = read_options()
    node = simulated.node() if simulated.driver_is_loaded() else None
    if node is None or options.gpu >= len(node["gpus"]):
        print(f"sim-hold: there is no GPU {options.gpu}, or no driver", file=sys.stderr)
        return 1
    gpu = node["gpus"][options.gpu]
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
    files = ["/dev/nvidiactl", f"/dev/nvidia{gpu['minor']}"]
    if options.kind in ("compute", "hidden"):
        files.append("/dev/nvidia-uvm")
    keep = [os.open(path, os.O_RDWR | os.O_CLOEXEC) for path in files]
    if options.gi is not None:
        keep += stand_in.open_capabilities(gpu["minor"], options.gi, options.ci)
    simulated.rename_process(options.name)
    if options.user:
        user = pwd.getpwnam(options.user)
        os.setgroups([])
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)
    place = f"gpu={options.gpu}"
    place += "" if options.gi is None else f" gi={options.gi}"
    place += "" if options.ci is None else f" ci={options.ci}"
    try:
        simulated.occupy(
            f'add {place} pid={os.getpid()} kind={options.kind} name="{options.name}" mem={options.memory}'
        )
    except simulated.SimulationError as error:
        print(f"sim-hold: {error}", file=sys.stderr)
        return 1
    print(f"holds {place.replace('=', ' ')} as process {os.getpid()}", flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
    for descriptor in keep:
        os.close(descriptor)
    return 0


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(usage=__doc__, prog="sim-hold")
    parser.add_argument("--gpu", type=int, required=True)
    parser.add_argument("--gi", type=int)
    parser.add_argument("--ci", type=int)
    for kind in ("hidden", "graphics", "client"):
        parser.add_argument(f"--{kind}", action="store_const", dest="kind", const=kind)
    parser.add_argument("--user", default="")
    parser.add_argument("--name", default="python")
    parser.add_argument("--memory", type=int, default=100)
    parser.set_defaults(kind="compute")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
