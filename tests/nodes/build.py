# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Makes what nodes are made of: the programs that boot them, the tree that they boot, and a key for ssh.

Nothing is installed on this machine. Packages are fetched by its own apt, with its own sources, and unpacked into a
folder; if its lists of packages are missing or stale, fresh ones are fetched into another folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import inspect
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import typing as t
from pathlib import Path

from .places import HERE, HOST_TOOLS, KEY, LAYERS, SIMULATOR, STORE

NEEDED_COMMANDS = ("apt-get", "dpkg", "perl", "ip", "nsenter", "setsid", "ssh", "ssh-keygen", "unshare")
HOST_PACKAGES = ("systemd-container", "libsystemd-shared", "mmdebstrap")
BASE_PACKAGES = (
    *("systemd", "systemd-sysv", "libpam-systemd", "dbus", "udev", "kmod"),
    *("openssh-server", "sudo", "python3", "iproute2", "procps"),
)
BASE_USERS = ("operator", "admin")  # may become root without a password

# What makes a node of the tree that the packages give. A path that ends in / is a folder.
BASE_FILES = {
    "etc/resolv.conf": "",  # nothing that a node does reaches further than this machine
    "etc/ssh/sshd_config.d/nodes.conf": (
        "UseDNS no\nPasswordAuthentication no\nMaxStartups 100\nMaxSessions 100\n"
        "AuthorizedKeysFile /etc/ssh/authorized_keys\n"
    ),
    # One as clouds set them up, one as hardened hosts do.
    "etc/sudoers.d/nodes": (
        "operator ALL=(ALL) NOPASSWD: ALL\nDefaults:operator !use_pty\n"
        "admin ALL=(ALL) NOPASSWD: ALL\nDefaults:admin use_pty\n"
    ),
    "etc/systemd/journald.conf.d/nodes.conf": "[Journal]\nStorage=persistent\nRateLimitIntervalSec=0\n",
    "var/log/journal/": "",
}
# D-Bus brings an id of its own, which would be the same on all nodes and is what Ansible shows.
BASE_LINKS = {"var/lib/dbus/machine-id": "/etc/machine-id"}
# Timers that would load the machine while tests measure.
BASE_MASKED = ("apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer")


class CannotBuildError(Exception):
    """Why there can be no nodes here, in one sentence."""


def why_not() -> str:
    """What keeps nodes from being made and booted on this machine; empty when nothing does."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "nodes are booted on Linux on x86_64 only"
    if os.geteuid() != 0:
        return "nodes are booted by root only"
    missing = [command for command in NEEDED_COMMANDS if shutil.which(command) is None]
    if missing:
        return f"there is no program {missing[0]}"
    STORE.mkdir(parents=True, exist_ok=True)
    # All that a node needs of the kernel: namespaces, and an overlay over this file system.
    script = (
        'cd "$1" && mkdir -p low up work all && mount -t overlay overlay -o lowerdir=low,upperdir=up,workdir=work all'
    )
    scratch = STORE / f"probe-{os.getpid()}"
    scratch.mkdir()
    try:
        words = ["unshare", "--pid", "--fork", "--net", "--mount", "--mount-proc", "--propagation", "private"]
        done = subprocess.run([*words, "sh", "-c", script, "sh", scratch], capture_output=True, text=True, check=False)
    finally:
        shutil.rmtree(scratch)
    if done.returncode:
        return f"namespaces with an overlay cannot be made: {' '.join(done.stderr.split())}"
    return ""


# --- all of it --------------------------------------------------------------------------------------------------


def build() -> Path:
    """Makes all that nodes need, unless it is there; the tree that they boot."""
    reason = why_not()
    if reason:
        raise CannotBuildError(f"There can be no nodes: {reason}.")
    with open(STORE / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # somebody else may be at it
        make_key()
        make_once(HOST_TOOLS, recipe_of_host_tools(), fetch_host_tools)
        tree = base_tree()
        make_once(tree, tree.name, make_base)
        forget_old_trees(tree, "base-")
    return tree


def base_tree() -> Path:
    """Where the tree is that this version of the recipe makes."""
    words = repr((BASE_PACKAGES, BASE_USERS, BASE_FILES, BASE_LINKS, BASE_MASKED)) + inspect.getsource(make_base)
    return STORE / f"base-{hashlib.sha256(words.encode()).hexdigest()[:10]}"


def driver_layer(branch: int) -> Path:
    """A tree that lies over the base tree: the simulated driver of a branch, and what belongs to a GPU node."""
    from . import machine  # needs the simulator, which is there after the other parts of this checkout

    digest = hashlib.sha256()
    for folder in (HERE / "machine", SIMULATOR / "nvmlsim", SIMULATOR / "src"):
        for file in sorted(folder.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                digest.update(str(file.relative_to(folder)).encode() + file.read_bytes())
    name = f"driver-{branch}-"
    tree = LAYERS / (name + digest.hexdigest()[:10])
    LAYERS.mkdir(parents=True, exist_ok=True)
    with open(LAYERS / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        make_once(tree, tree.name, lambda half: machine.install(half, branch))
        forget_old_trees(tree, name)
    return tree


def make_once(folder: Path, recipe: str, make: t.Callable[[Path], None]) -> None:
    """Makes a folder in one piece: one that was interrupted halfway is never taken for whole."""
    stamp = folder.with_name(f"{folder.name}.stamp")
    if folder.is_dir() and stamp.exists() and stamp.read_text() == recipe:
        return
    started = time.monotonic()
    half = folder.with_name(f"{folder.name}.half")
    stamp.unlink(missing_ok=True)
    for leftover in (*folder.parent.glob("*.half"), folder):  # nobody else is at one: there is a lock
        if leftover.is_dir():
            shutil.rmtree(leftover)
    half.mkdir(parents=True)
    make(half)
    half.rename(folder)
    stamp.write_text(recipe)
    say(f"{folder.relative_to(STORE)} took {time.monotonic() - started:.0f} s")


def forget_old_trees(current: Path, name: str) -> None:
    """Removes trees of earlier recipes, hundreds of megabytes each, unless nodes run on them."""
    for stamp in current.parent.glob(f"{name}*.stamp"):
        tree = stamp.with_suffix("")
        if tree != current and not in_use(tree):
            stamp.unlink()
            shutil.rmtree(tree, ignore_errors=True)


def in_use(tree: Path) -> bool:
    from .fleet import all_nodes  # not above: a fleet needs what is made here

    return any(str(tree) in node.record["layers"] for node in all_nodes())


def make_key() -> None:
    if not KEY.exists():
        half = KEY.with_name("key.half")
        for leftover in STORE.glob("key*"):
            leftover.unlink()
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "nodes", "-f", half)
        half.with_name("key.half.pub").rename(KEY.with_name("key.pub"))
        half.rename(KEY)


# --- the programs -----------------------------------------------------------------------------------------------


def recipe_of_host_tools() -> str:
    return " ".join(HOST_PACKAGES)


def fetch_host_tools(folder: Path) -> None:
    """Programs and the library that they share, of one version, in whatever version this machine's apt offers."""
    packages = folder / "packages"
    packages.mkdir()
    run("apt-get", *apt_options(), "download", "--quiet", *HOST_PACKAGES, folder=packages)
    for package in packages.iterdir():
        run("dpkg", "-x", package, folder)
    shutil.rmtree(packages)


def apt_options() -> list[str]:
    """Options with which apt finds packages: none, where its lists are fresh enough; else lists of our own."""
    if not lists_are_missing([]):
        return []
    lists = STORE / "apt"
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    options = ["-o", f"Dir::State::lists={lists}", "-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache="]
    if lists_are_missing(options):
        say("fetching lists of packages")
        run("apt-get", *options, "-o", "APT::Sandbox::User=root", "update", "--quiet")
    return options


def lists_are_missing(options: list[str]) -> bool:
    """Whether a package cannot be fetched: not known, or only in a version that is no longer there."""
    words = ["apt-get", *options, "download", "--print-uris", *HOST_PACKAGES]
    found = subprocess.run(words, capture_output=True, text=True, check=False)
    return found.returncode != 0 or not debian_mirror(options)


def debian_mirror(options: list[str]) -> str:
    """Where this machine's apt fetches Debian from; empty when it does not know."""
    words = [
        "apt-get",
        *options,
        "indextargets",
        "--format",
        "$(CREATED_BY) $(ORIGIN) $(COMPONENT) $(CODENAME) $(REPO_URI)",
    ]
    listed = subprocess.run(words, capture_output=True, text=True, check=False).stdout
    found = re.findall(rf"^Packages Debian main {codename()} (\S+)$", listed, re.MULTILINE)
    return found[0] if found else ""


def codename() -> str:
    release = Path("/etc/os-release")
    found = re.search(r"^VERSION_CODENAME=(\w+)$", release.read_text() if release.exists() else "", re.MULTILINE)
    return found.group(1) if found else "bookworm"


# --- the tree ---------------------------------------------------------------------------------------------------


def make_base(folder: Path) -> None:
    """A Debian of the same release as this machine, with systemd and sshd."""
    options = apt_options()
    words = ["--mode=root", "--variant=apt", "--format=directory", "--quiet"]
    words += [f"--include={','.join(BASE_PACKAGES)}", '--aptopt=APT::Install-Recommends "false"']
    words += ["--dpkgopt=force-unsafe-io"]
    source = f"deb {debian_mirror(options)} {codename()} main"
    run("perl", HOST_TOOLS / "usr/bin/mmdebstrap", *words, codename(), folder, source)
    for name, content in BASE_FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            path.mkdir(exist_ok=True)
        else:
            path.unlink(missing_ok=True)
            path.write_text(content)
    for user in BASE_USERS:
        run("chroot", folder, "useradd", "--create-home", "--no-user-group", "--shell", "/bin/bash", user)
    for name, target in BASE_LINKS.items():
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)
    for unit in BASE_MASKED:
        (folder / "etc/systemd/system" / unit).unlink(missing_ok=True)
        (folder / "etc/systemd/system" / unit).symlink_to("/dev/null")


# --- helpers ----------------------------------------------------------------------------------------------------


def say(text: str) -> None:
    print(f"nodes: {text}", flush=True)


def run(*words: str | Path, folder: Path | None = None) -> None:
    """Runs a command quietly; what it printed is in the failure."""
    done = subprocess.run(
        words,
        check=False,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"},
    )
    if done.returncode:
        said = "\n".join(done.stdout.splitlines()[-15:])
        raise CannotBuildError(f"{' '.join(map(str, words[:3]))} ... failed ({done.returncode}):\n{said}")
