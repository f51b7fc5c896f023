# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Engines are set up in their own files: what others wrote stays, a second run writes nothing, a restart is told."""

from __future__ import annotations

import json
import os
import time
import typing as t

import pytest

from ansible_collections.gpufleet.mig.plugins.modules import mig_container_engine
from ansible_collections.gpufleet.mig.tests.unit.plugins.module_utils.engine.cdi_host import Host

DOCKER = "/etc/docker/daemon.json"
CONTAINERD = "/etc/containerd/config.toml"
BESIDE = "/etc/containerd/conf.d/99-nvidia.toml"
CRIO = "/etc/crio/crio.conf.d/99-gpufleet-mig.conf"
PODMAN = "/etc/containers/containers.conf.d/60-gpufleet-mig.conf"


class Node:
    """A host with all engines; their files are below a folder."""

    def __init__(self, host: t.Any, tree: Host) -> None:
        self.host, self.tree = host, tree
        for program in ("dockerd", "containerd", "crio", "podman"):
            tree.program(program)

    def run(self, engine: str, check: bool = False, **options: t.Any) -> dict[str, t.Any]:
        module = mig_container_engine
        return dict(self.host.run(module, check_mode=check, engine=engine, root=str(self.tree.path), **options))

    def put(self, path: str, text: str) -> None:
        self.tree.file(path).parent.mkdir(parents=True, exist_ok=True)
        self.tree.file(path).write_text(text)

    def text(self, path: str) -> str:
        return self.tree.file(path).read_text()

    def inode(self, path: str) -> int:
        return self.tree.file(path).stat().st_ino

    def below(self, path: str) -> str:
        return str(self.tree.file(path))


@pytest.fixture
def node(tmp_path, monkeypatch, host):
    return Node(host, Host(tmp_path / "tree", monkeypatch))


def check_do_and_do_again(node: Node, engine: str, files: t.Sequence[str], **options: t.Any) -> None:
    below = [node.below(path) for path in files]
    there = [node.tree.file(path).exists() for path in files]
    checked = node.run(engine, check=True, **options)
    assert (checked["changed"], sorted(checked["files"])) == (True, sorted(below))
    assert [node.tree.file(path).exists() for path in files] == there
    done = node.run(engine, **options)
    assert (done["changed"], sorted(done["files"])) == (True, sorted(below))
    inodes = [node.inode(path) for path in files]
    for again in (node.run(engine, **options), node.run(engine, check=True, **options)):
        assert (again["changed"], again["files"]) == (False, [])
    assert [node.inode(path) for path in files] == inodes


# --- Docker ---------------------------------------------------------------------------------------------------------


def test_docker_keeps_every_other_setting_and_their_order(node):
    theirs = {
        "log-driver": "journald",
        "features": {"containerd-snapshotter": True},
        "runtimes": {"kata": {"path": "/usr/bin/kata"}},
        "https-proxy": "http://name:secret@proxy",
    }
    node.put(DOCKER, json.dumps(theirs))
    check_do_and_do_again(node, "docker", [DOCKER], runtime=True)
    after = json.loads(node.text(DOCKER))
    assert list(after) == list(theirs)
    assert after["features"] == {"containerd-snapshotter": True, "cdi": True}
    assert after["runtimes"]["kata"] == theirs["runtimes"]["kata"]
    assert after["runtimes"]["nvidia"] == {"path": "/usr/bin/nvidia-container-runtime", "args": []}
    assert after["https-proxy"] == theirs["https-proxy"]


def test_docker_is_set_up_where_it_had_no_file(node):
    check_do_and_do_again(node, "docker", [DOCKER])
    assert json.loads(node.text(DOCKER)) == {"features": {"cdi": True}}
    assert os.stat(node.below(DOCKER)).st_mode & 0o777 == 0o644


def test_what_says_the_same_in_other_letters_is_not_written(node):
    text = '{"features":{"cdi":true},\n  "runtimes": {"nvidia": {"path": "nvidia-container-runtime", "args": ["--x"]}}}'
    node.put(DOCKER, text)
    assert not node.run("docker", runtime=True)["changed"]
    assert node.text(DOCKER) == text


def test_the_default_runtime_is_set_when_asked_for_and_else_stays(node):
    node.run("docker", default_runtime=True)
    assert json.loads(node.text(DOCKER))["default-runtime"] == "nvidia"
    assert not node.run("docker")["changed"]
    assert json.loads(node.text(DOCKER))["default-runtime"] == "nvidia"


@pytest.mark.parametrize("text", ['{"a": ', "[]", '{"features": []}'.replace("[]", "7"), '{"runtimes": "x"}'])
def test_a_file_that_docker_could_not_read_is_refused_and_left(node, text):
    node.put(DOCKER, text)
    result = node.run("docker", runtime=True)
    assert result["failed"]
    assert "Docker would not start with it" in result["msg"]
    assert node.text(DOCKER) == text


def test_a_diff_shows_no_password(node):
    node.put(DOCKER, '{"https-proxy": "http://name:secret@proxy"}')
    assert "secret" not in json.dumps(node.run("docker"))


def test_a_link_to_the_file_and_its_mode_stay(node):
    node.put("/srv/daemon.json", "{}")
    node.tree.file("/srv/daemon.json").chmod(0o600)
    node.tree.file(DOCKER).parent.mkdir()
    node.tree.file(DOCKER).symlink_to(node.below("/srv/daemon.json"))
    node.run("docker")
    assert node.tree.file(DOCKER).is_symlink()
    assert "cdi" in node.text("/srv/daemon.json")
    assert os.stat(node.below("/srv/daemon.json")).st_mode & 0o777 == 0o600


# --- containerd -----------------------------------------------------------------------------------------------------


CONFIG = """# Kept by the platform team.
version = {version}

[plugins."cri"]  # ours
  sandbox_image = "pause:3.9"
"""


@pytest.mark.parametrize("version", [2, 3])
def test_containerd_gets_a_file_beside_its_own_whose_letters_stay(node, version):
    text = CONFIG.format(version=version)
    node.put(CONTAINERD, text)
    check_do_and_do_again(node, "containerd", [CONTAINERD, BESIDE])
    folder = node.below("/etc/containerd/conf.d")
    assert node.text(CONTAINERD) == f'imports = ["{folder}/*.toml"]\n{text}'
    beside = node.text(BESIDE)
    assert f"version = {version}" in beside
    assert "sandbox_image" in beside
    assert "enable_cdi = true" in beside
    assert 'BinaryName = "/usr/bin/nvidia-container-runtime"' in beside


def test_an_import_that_is_there_already_is_enough(node):
    pattern = f"{node.below('/etc/containerd/conf.d')}/*.toml"
    text = f"# Text\nimports = [\n  '/etc/other.toml', # more\n  \"{pattern}\",\n]\nversion = 2\n"
    node.put(CONTAINERD, text)
    assert node.run("containerd")["files"] == [node.below(BESIDE)]
    assert node.text(CONTAINERD) == text


def test_beside_other_imports_the_file_is_written_as_nvidia_does(node):
    node.put(CONTAINERD, 'version = 2\nimports = ["/etc/other.toml"]\n')
    check_do_and_do_again(node, "containerd", [CONTAINERD, BESIDE])
    assert '"/etc/other.toml"' in node.text(CONTAINERD)
    assert f'"{node.below("/etc/containerd/conf.d")}/*.toml"' in node.text(CONTAINERD)
    assert "gpufleet-mig-" not in node.text(CONTAINERD)


def test_an_import_in_a_comment_is_none(node):
    node.put(CONTAINERD, f'# imports = ["{node.below("/etc/containerd/conf.d")}/*.toml"]\nversion = 2\n')
    assert node.below(CONTAINERD) in node.run("containerd")["files"]


def test_containerd_is_set_up_where_it_had_no_file(node):
    check_do_and_do_again(node, "containerd", [CONTAINERD, BESIDE])
    assert "version = 2" in node.text(CONTAINERD)


def test_a_change_of_their_settings_gets_into_the_file_beside_them(node):
    node.put(CONTAINERD, CONFIG.format(version=2))
    node.run("containerd")
    node.put(CONTAINERD, node.text(CONTAINERD).replace("3.9", "3.10"))
    assert node.run("containerd")["files"] == [node.below(BESIDE)]
    assert "3.10" in node.text(BESIDE)


def test_a_default_that_is_nvidias_already_stays_so(node):
    node.run("containerd", default_runtime=True)
    assert 'default_runtime_name = "nvidia"' in node.text(BESIDE)
    assert not node.run("containerd")["changed"]


def test_a_toolkit_before_1_18_changes_the_file_itself(node):
    node.tree.behave(old=True)
    node.put(CONTAINERD, CONFIG.format(version=2))
    check_do_and_do_again(node, "containerd", [CONTAINERD])
    assert "BinaryName" in node.text(CONTAINERD)
    assert not node.tree.file(BESIDE).exists()


def test_a_containerd_that_only_serves_docker_is_left_alone(node):
    node.put(CONTAINERD, 'disabled_plugins = ["cri"]\n')
    result = node.run("containerd")
    assert (result["changed"], result["present"]) == (False, False)
    assert "its CRI plugin is disabled" in result["msg"]
    assert node.tree.calls("nvidia-ctk") == []


def test_a_toolkit_that_fails_or_is_missing_changes_nothing(node):
    node.put(CONTAINERD, CONFIG.format(version=2))
    node.tree.behave(fail="unable to load config")
    assert "'nvidia-ctk runtime configure' failed: unable to load config" in node.run("containerd")["msg"]
    (node.tree.programs / "nvidia-ctk").unlink()
    assert "Install the NVIDIA Container Toolkit" in node.run("containerd")["msg"]
    assert node.text(CONTAINERD) == CONFIG.format(version=2)


# --- CRI-O and Podman -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("engine", "path"), [("crio", CRIO), ("podman", PODMAN)])
def test_engines_that_find_cdi_devices_by_themselves_get_no_file(node, engine, path):
    assert not node.run(engine)["changed"]
    assert not node.tree.file(path).exists()


@pytest.mark.parametrize(
    ("engine", "path", "line"),
    [
        ("crio", CRIO, 'runtime_path = "/usr/bin/nvidia-container-runtime"'),
        ("podman", PODMAN, 'nvidia = ["/usr/bin/nvidia-container-runtime"]'),
    ],
)
def test_a_runtime_is_in_a_file_of_its_own_that_goes_when_it_is_not_wanted(node, engine, path, line):
    check_do_and_do_again(node, engine, [path], runtime=True)
    assert line in node.text(path)
    assert node.run(engine)["files"] == [node.below(path)]
    assert not node.tree.file(path).exists()


@pytest.mark.parametrize(
    ("engine", "path", "line"), [("crio", CRIO, 'default_runtime = "nvidia"'), ("podman", PODMAN, 'runtime = "nvidia"')]
)
def test_it_can_be_the_default(node, engine, path, line):
    node.run(engine, default_runtime=True)
    assert line in node.text(path).splitlines()


@pytest.mark.parametrize(("engine", "path"), [("crio", CRIO), ("podman", PODMAN)])
def test_a_file_of_that_name_by_somebody_else_is_refused(node, engine, path):
    node.put(path, "# mine\n")
    assert "was not written by this module" in node.run(engine, runtime=True)["msg"]
    assert node.text(path) == "# mine\n"


def test_a_path_is_text_in_these_files(node):
    node.run("podman", runtime=True, runtime_path='/opt/"x')
    assert r'nvidia = ["/opt/\"x"]' in node.text(PODMAN)


# --- all of them ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["docker", "containerd", "crio", "podman"])
def test_an_engine_that_a_node_does_not_have_is_passed_over(node, engine):
    (node.tree.programs / mig_container_engine.node_engines.ENGINES[engine].program).unlink()
    result = node.run(engine, runtime=True)
    assert (result["changed"], result["present"], result["files"]) == (False, False, [])
    assert "There is no" in result["msg"]


def test_a_restart_is_pending_until_it_was_made_whoever_made_it(node):
    def since(seconds: float) -> None:
        node.tree.behave(started=int((time.clock_gettime(time.CLOCK_MONOTONIC) + seconds) * 1e6))

    since(-3600)
    assert node.run("docker", check=True)["restart_pending"]
    done = node.run("docker")
    assert done["restart_pending"]
    assert "docker.service has yet to be restarted" in done["msg"]
    again = node.run("docker")
    assert (again["changed"], again["restart_pending"]) == (False, True)
    since(3600)
    assert not node.run("docker")["restart_pending"]
    assert node.run("docker")["msg"] == "Docker is set up."


def test_an_engine_that_does_not_run_needs_no_restart(node):
    assert not node.run("docker")["restart_pending"]
    assert node.run("podman", runtime=True)["unit"] == ""


def test_whether_the_node_is_drained_is_told(node, host):
    assert not node.run("docker")["drained"]
    os.makedirs(host.state_dir, exist_ok=True)
    with open(os.path.join(host.state_dir, "drained.json"), "w", encoding="utf-8") as file:
        file.write('{"schema": 1, "label": "all-1g.5gb"}')
    assert node.run("docker")["drained"]


def test_a_runtime_is_an_absolute_path(node):
    assert "give the absolute path" in node.run("docker", runtime_path="nvidia-container-runtime")["msg"]
