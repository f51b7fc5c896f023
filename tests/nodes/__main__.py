# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Fleets from the command line.

python -m tests.nodes build                          makes what nodes need; up does it too
python -m tests.nodes up FLEET --node a=8xa100-sxm4-40gb --node b=2xh100-sxm5-80gb,driver=570
python -m tests.nodes status
python -m tests.nodes run FLEET NODE -- COMMAND...
python -m tests.nodes inventory FLEET > hosts
python -m tests.nodes stop|kill|start|reboot FLEET NODE
python -m tests.nodes down FLEET
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from . import build, cluster, fleet, image, observe, scenarios


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.nodes", description="Nodes that boot, with simulated GPUs. See docs/testing-on-nodes.md."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build", help="make what nodes need")
    commands.add_parser("why-not", help="say what keeps nodes from running here; status 1 when something does")
    commands.add_parser("status", help="list all nodes")
    up = commands.add_parser("up", help="make nodes and boot them; what there was of this fleet goes first")
    up.add_argument("fleet")
    up.add_argument("--node", action="append", default=[], metavar="NAME=GPUS[,OPTION=VALUE]...")
    up.add_argument("--platforms", type=json.loads, default=[], metavar="JSON", help="the same as Molecule's platforms")
    up.add_argument("--lower", action="append", default=[], metavar="TREE", help="a tree that lies over the base")
    up.add_argument("--wait", choices=["boot", "ssh", "nothing"], default="boot")
    for name, text in (
        ("start", "switch a node on"),
        ("stop", "switch it off in an orderly way"),
        ("kill", "cut its power"),
        ("reboot", "reboot it"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("fleet")
        command.add_argument("node")
    for name, text in (
        ("down", "remove all there is of a fleet"),
        ("inventory", "print it for Ansible"),
        ("remember", "note what runs, what lies on the disks and what the GPUs were told"),
        ("tell", "write what the nodes know into .venv/log: failed units, journal, what the GPUs look like"),
        ("cluster", "start a Kubernetes cluster of its nodes, with an API in memory; print its kubeconfig"),
        ("unchanged", "say what is different from what was remembered; status 1 when something is"),
    ):
        commands.add_parser(name, help=text).add_argument("fleet")
    run = commands.add_parser("run", help="run a command on a node; words are taken as they are")
    run.add_argument("fleet")
    run.add_argument("node")
    run.add_argument("words", nargs="+", metavar="COMMAND")
    tree = commands.add_parser("image", help="run a command that finds a Debian that does not run at $IMAGE")
    tree.add_argument("folder", type=Path, help="where what it changes stays, in upper/")
    tree.add_argument("words", nargs="+", metavar="COMMAND")
    scenario = commands.add_parser("scenario", help="run a Molecule scenario, or one step of it")
    scenario.add_argument("scenario")
    scenario.add_argument("words", nargs="*", default=["test"], metavar="STEP")
    return parser


def obey(options: argparse.Namespace) -> int:
    command = options.command
    if command == "build":
        build.build()
    elif command == "why-not":
        reason = build.why_not()
        print(reason)
        return 1 if reason else 0
    elif command == "status":
        for node in fleet.all_nodes():
            print(f"{node.fleet} {node.name} {'on' if node.is_on() else 'off'} {node.boots()} boots")
    elif command == "up":
        computers = [*options.node, *map(fleet.Computer.from_platform, options.platforms)]
        fleet.Fleet(options.fleet).up(computers, lower=options.lower, wait=options.wait)
    elif command == "down":
        fleet.Fleet(options.fleet).down()
    elif command == "cluster":
        print(cluster.start(fleet.Fleet(options.fleet)))
    elif command == "inventory":
        print(json.dumps(fleet.Fleet(options.fleet).inventory(), indent=2))
    elif command == "remember":
        observe.remember(fleet.Fleet(options.fleet))
    elif command == "tell":
        told = observe.tell_file(options.fleet)
        told.parent.mkdir(parents=True, exist_ok=True)
        told.write_text("\n".join(map(observe.tell, fleet.Fleet(options.fleet).nodes())))
        print(told)
    elif command == "unchanged":
        lines = observe.differences(fleet.Fleet(options.fleet))
        print("\n".join(lines) or "Nothing happened.")
        return 1 if lines else 0
    elif command == "image":
        return image.run(options.folder.absolute(), options.words)
    elif command == "scenario":
        return scenarios.run(options.scenario, *options.words)
    elif command == "run":
        node = fleet.Fleet(options.fleet).node(options.node)
        done = node.run(options.words, check=False, timeout=3600)
        sys.stdout.write(done.stdout)
        sys.stderr.write(done.stderr)
        return done.returncode
    else:
        node = fleet.Fleet(options.fleet).node(options.node)
        {"start": node.start, "stop": node.stop, "kill": node.kill, "reboot": node.reboot}[command]()
    return 0


def main() -> int:
    try:
        return obey(arguments().parse_args())
    except (fleet.NodeError, build.CannotBuildError, subprocess.TimeoutExpired) as error:
        print(f"nodes: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130  # what was booted stays: `down` removes it


if __name__ == "__main__":
    sys.exit(main())
