# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""An AWX that is played, and playbooks/awx.yml run against it."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpufleet.mig.tests.awx.server import Asked, Awx

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"
EXAMPLE = ROOT / "examples" / "awx"
PROJECT = EXAMPLE / "project"
ORGANIZATION = "GPU platform"

TOKEN = "token-that-nobody-may-see"
PASSWORD = "password-that-nobody-may-see"
SECRETS = {
    "MIG_SSH_KEY": "-----BEGIN KEY-----\nssh-key-that-nobody-may-see\n-----END KEY-----\n",
    "MIG_GIT_KEY": "git-key-that-nobody-may-see",
    "MIG_REGISTRY_PASSWORD": "registry-password-that-nobody-may-see",
}
CORES = {"2.19": VENV / "bin", "newest": VENV / "newest" / "bin"}


def environment(core: str, home: Path) -> dict[str, str]:
    """Of a controller: this Ansible, the collections of the tests, and nobody's settings."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("ANSIBLE_", "CONTROLLER_", "TOWER_")) and not name.lower().endswith("_proxy")
    }
    return {
        **kept,
        "PATH": f"{CORES[core]}:{os.environ['PATH']}",
        "HOME": str(home),
        "ANSIBLE_HOME": str(home / ".ansible"),
        "ANSIBLE_COLLECTIONS_PATH": os.environ.get("ANSIBLE_COLLECTIONS_PATH", str(VENV / "collections")),
        "ANSIBLE_NOCOLOR": "1",
        "LC_ALL": "C.UTF-8",
    }


@dataclasses.dataclass
class Run:
    """How one run of the playbook ended."""

    code: int
    output: str
    asked: list[Asked]

    @property
    def writes(self) -> list[str]:
        return [f"{asked.method} {asked.path}" for asked in self.asked if asked.method != "GET"]


@dataclasses.dataclass
class SetUp:
    """Runs playbooks/awx.yml with the variables of examples/awx against an AWX."""

    awx: Awx
    home: Path

    def __call__(
        self, *options: str, core: str = "2.19", given: dict[str, str] | None = None, **variables: t.Any
    ) -> Run:
        """``given`` is the environment of the operator: by default a token and all secrets."""
        given = {"CONTROLLER_OAUTH_TOKEN": TOKEN, **SECRETS} if given is None else given
        words = ["ansible-playbook", "gpufleet.mig.awx", "-e", f"@{EXAMPLE / 'awx.yml'}", "-e", json.dumps(variables)]
        self.awx.forget()
        with self.awx.listening() as url:
            done = subprocess.run(
                [*words, *options],
                check=False,
                cwd=self.home,
                env={**environment(core, self.home), "CONTROLLER_HOST": url, **given},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        return Run(done.returncode, done.stdout, list(self.awx.asked))


def fresh_awx() -> Awx:
    """An AWX with an organization and nothing else; a project of it has the playbooks of the example."""
    awx = Awx(TOKEN, users={"admin": PASSWORD}, playbooks=[file.name for file in PROJECT.glob("*.yml")])
    awx.add("organizations", ORGANIZATION)
    return awx


@pytest.fixture
def empty(tmp_path: Path) -> SetUp:
    return SetUp(fresh_awx(), tmp_path)


@pytest.fixture(scope="session")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Awx, Run]:
    """An AWX after the first run of the playbook, and that run. Not to be changed."""
    set_up = SetUp(fresh_awx(), tmp_path_factory.mktemp("first-run"))
    return set_up.awx, set_up("-vvv")


@pytest.fixture
def done(first_run: tuple[Awx, Run], tmp_path: Path) -> SetUp:
    """An AWX of one's own in which everything was made."""
    awx, run = first_run
    assert run.code == 0, run.output[-3000:]
    return SetUp(awx.copy(), tmp_path)
