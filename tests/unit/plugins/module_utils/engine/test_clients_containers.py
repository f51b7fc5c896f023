# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Containers by label are stopped one by one and exactly those run again; a runtime that is off is never called."""

from __future__ import annotations

import os
import time

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import clients, commands, state
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.clients import ClientError
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import Client, Owner, WishError
from ansible_collections.gpufleet.mig.tests.unit.plugins.module_utils.engine.fake_containers import FakeContainers
from ansible_collections.gpufleet.mig.tests.unit.plugins.module_utils.engine.fake_systemd import Fake

DOCKER = "docker.service"
DCGM = "nvidia-dcgm.service"
EVERY_KIND = frozenset({"instances", "mode", "reset"})
GPU = {"container": "gpu", "runtime": "docker"}
PLACES = state.Places("/var/lib/gpufleet-mig", "/run/mig")


@pytest.fixture(name="fake")
def fake_systemd(tmp_path, monkeypatch):
    """systemd with docker and containerd; no program of the host of the tests can be found."""
    fake = Fake(tmp_path / "bin")
    fake.unit(DOCKER, TriggeredBy="docker.socket", Type="notify")
    fake.unit("containerd.service", Type="notify")
    monkeypatch.setenv("PATH", str(fake.folder))
    monkeypatch.setattr(commands, "_STANDARD_PATH", str(fake.folder))
    for program in ("flock", "timeout", "sleep"):
        (fake.folder / program).symlink_to(f"/usr/bin/{program}")
    return fake


@pytest.fixture(name="runtimes")
def fake_runtimes(fake):
    return FakeContainers(fake.folder)


@pytest.fixture(name="host")
def host_with_systemd():
    return clients.Host(settle=0.3)


def chosen(host, *named, kinds=EVERY_KIND):
    return clients.select(clients.parse(list(named)), kinds, host)


def ended(pid):
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
                if file.read().rpartition(")")[2].split()[0] in ("Z", "X"):
                    return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


# --- naming them ---------------------------------------------------------------------------------------------------


def test_a_label_a_runtime_and_kinds_of_change_name_containers():
    assert clients.parse(
        [
            "nvidia-dcgm",
            {"container": "com.example/gpu=a, b=c", "runtime": "podman", "for": "mode"},
            {"container": "gpu", "runtime": "docker"},
        ]
    ) == (
        Client(DCGM),
        Client("", frozenset({"mode"}), "com.example/gpu=a, b=c", "podman"),
        Client("", EVERY_KIND, "gpu", "docker"),
    )


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"container": "gpu"}, "clients[0].runtime is 'None'; it must say whose containers these are: docker, podman"),
        ({"container": "gpu", "runtime": "crictl"}, "'crictl'"),
        ({"container": "gpu", "runtime": ["docker"]}, "clients[0].runtime"),
        ({"container": "gpu", "runtime": "docker", "unit": "a.service"}, "'unit', which is not known here"),
        ({"container": "gpu", "runtime": "docker", "for": ["boot"]}, "'boot'"),
        ({"container": "", "runtime": "docker"}, "clients[0].container is ''; it must be a label"),
        ({"container": True, "runtime": "docker"}, "clients[0].container is 'True'"),
        ({"container": "--all", "runtime": "docker"}, "'--all'"),
        ({"container": "=x", "runtime": "docker"}, "'=x'"),
        ({"container": "gpu=\x1b[31m", "runtime": "docker"}, "'gpu=?[31m'"),
        ({"container": "gpu=a\nb", "runtime": "docker"}, "'gpu=a?b'"),
        ({"container": "g*", "runtime": "docker"}, "'g*'"),
        ({"container": "g" * 300, "runtime": "docker"}, "must be a label"),
    ],
)
def test_malformed_containers_are_refused_with_their_place(entry, told):
    with pytest.raises(WishError) as error:
        clients.parse([entry])
    assert told in str(error.value)
    assert str(error.value).isprintable()


def test_a_process_belongs_to_its_unit_or_to_its_container():
    client = f"docker:{7:064x}"
    inside = Owner("container", f"docker-{7:064x}.scope", "docker", f"{7:064x}")
    assert clients.belongs(inside, (DCGM, client))
    assert clients.belongs(Owner("unit", DCGM), (DCGM, client))
    assert not clients.belongs(inside, (DCGM, f"docker:{8:064x}"))
    assert not clients.belongs(Owner("unit", "other.service"), (DCGM, client))
    assert not clients.belongs(Owner(), (DCGM, client))


# --- which are to be stopped ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("runtime", ["docker", "podman", "nerdctl"])
def test_running_containers_with_the_label_are_chosen_and_no_others(runtimes, host, runtime):
    first = runtimes.add(runtime, 1, gpu="yes")
    runtimes.add(runtime, 2, other="yes")
    runtimes.add(runtime, 3, gpu="yes", status="exited")
    last = runtimes.add(runtime, 4, gpu="no")
    crashing = runtimes.add(runtime, 5, gpu="no", status="restarting")
    assert chosen(host, {"container": "gpu", "runtime": runtime}) == (crashing, last, first)
    assert chosen(host, {"container": "gpu=yes", "runtime": runtime}) == (first,)
    assert chosen(host, {"container": "gpu=", "runtime": runtime}) == (crashing, last, first)
    assert {call[0] for call in runtimes.calls()} == {runtime}
    assert not runtimes.calls("stop", "start")


def test_a_label_is_one_argument_however_it_looks(runtimes, host):
    odd = "gpu=$(reboot); 'x' \"y\" é --all"
    runtimes.add("docker", 1, gpu=odd.partition("=")[2])
    assert chosen(host, {"container": odd, "runtime": "docker"}) == (f"docker:{1:064x}",)
    assert runtimes.calls("ps") == [["docker", "ps", "--quiet", "--no-trunc", "--filter", f"label={odd}"]]


def test_docker_is_asked_on_this_host_wherever_root_once_pointed_it(runtimes, host, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "ssh://elsewhere")
    monkeypatch.setenv("DOCKER_CONTEXT", "elsewhere")
    runtimes.add("docker", 1, gpu="")
    assert chosen(host, GPU)
    assert runtimes.variables() == [{"DOCKER_HOST": "unix:///run/docker.sock"}] * 2


def test_containers_and_units_are_chosen_in_the_order_given_and_for_their_kinds_of_change(fake, runtimes, host):
    fake.unit(DCGM)
    container = runtimes.add("docker", 1, gpu="")
    named = [GPU, DCGM, {"container": "gpu", "runtime": "podman"}]
    assert chosen(host, *named) == (container, DCGM)
    assert chosen(host, DCGM, GPU) == (DCGM, container)
    assert chosen(host, {**GPU, "for": "mode"}, DCGM, kinds={"instances"}) == (DCGM,)
    assert chosen(host, GPU, {**GPU, "container": "gpu="}) == (container,)


def test_a_container_that_is_never_stopped_is_not_and_does_not_go_with_its_daemon(fake, runtimes, host):
    fake.unit(DCGM)
    runtimes.add("docker", 1, gpu="", keep="")
    other = runtimes.add("docker", 2, gpu="")
    kept = {"container": "keep", "runtime": "docker", "for": "never"}
    assert chosen(host, GPU, DCGM, kept) == (other, DCGM)
    with pytest.raises(ClientError, match="Stopping docker.service would also stop docker:.* never stopped"):
        chosen(host, DOCKER, GPU, kept)


def test_containers_come_before_the_daemon_that_runs_them_whatever_the_order_and_the_kind_of_change(runtimes, host):
    container = runtimes.add("docker", 1, gpu="")
    other = runtimes.add("podman", 2, gpu="")
    named = [DOCKER, {**GPU, "for": "reset"}, {"container": "gpu", "runtime": "podman"}]
    assert chosen(host, *named, kinds={"mode"}) == (container, DOCKER, other)


@pytest.mark.parametrize("active", ["inactive", "failed", "activating"])
@pytest.mark.parametrize(("runtime", "unit"), [("docker", DOCKER), ("nerdctl", "containerd.service")])
def test_a_runtime_whose_daemon_is_not_active_is_never_called_since_the_call_would_start_it(
    fake, runtimes, host, active, runtime, unit
):
    fake.unit(unit, active)
    runtimes.add(runtime, 1, gpu="")
    assert chosen(host, {"container": "gpu", "runtime": runtime}) == ()
    assert not runtimes.calls()


def test_a_docker_that_was_never_installed_as_a_unit_is_not_called(fake, runtimes, host):
    fake.set(units={})
    assert chosen(host, GPU) == ()
    assert not runtimes.calls()


def test_a_runtime_whose_client_is_not_there_has_nothing_to_stop(fake, host):
    FakeContainers(fake.folder, programs=("podman",))
    assert chosen(host, GPU, {"container": "gpu", "runtime": "nerdctl"}) == ()
    assert not fake.calls()


@pytest.mark.parametrize("system", ["initializing", "starting"])
@pytest.mark.parametrize("runtime", ["docker", "podman", "nerdctl"])
def test_while_the_host_boots_no_runtime_is_called(fake, runtimes, host, system, runtime):
    runtimes.add(runtime, 1, gpu="")
    fake.set(system=system)
    assert chosen(host, {"container": "gpu", "runtime": runtime}) == ()
    assert not runtimes.calls()


def test_where_no_systemd_runs_no_runtime_is_called(runtimes):
    runtimes.add("podman", 1, gpu="")
    assert chosen(clients.NoManager(), {"container": "gpu", "runtime": "podman"}) == ()
    assert not runtimes.calls()


@pytest.mark.parametrize(
    ("runtime", "container", "told"),
    [
        ("docker", {"goes": True}, "(exporter) is removed when it stops (--rm)"),
        ("podman", {"goes": True}, "(exporter) is removed when it stops (--rm)"),
        ("nerdctl", {"goes": True}, "(exporter) is removed when it stops (--rm)"),
        ("docker", {"status": "paused"}, "(exporter) is paused, and would not be afterwards"),
        (
            "podman",
            {"PODMAN_SYSTEMD_UNIT": "exporter.service"},
            "is run by the unit 'exporter.service', which is to be",
        ),
    ],
)
def test_what_could_not_be_put_back_is_refused_by_name_before_anything_stops(runtimes, host, runtime, container, told):
    runtimes.add(runtime, 1, gpu="")
    runtimes.add(runtime, 2, "exporter", gpu="", **container)
    with pytest.raises(ClientError) as error:
        chosen(host, {"container": "gpu", "runtime": runtime})
    assert told in str(error.value)
    assert str(error.value).startswith(f"{runtime}:{2:064x} (exporter)")
    assert not runtimes.calls("stop")


def test_a_client_that_does_not_answer_is_given_up_before_anything_stops(runtimes, host, monkeypatch):
    monkeypatch.setattr(clients, "_ANSWER_SECONDS", 3.0)
    runtimes.set("docker", hang=True)
    with pytest.raises(ClientError, match="docker does not answer 'ps'"):
        chosen(host, GPU)
    pids = (runtimes.folder / "hanging").read_text().split()
    assert all(map(ended, pids))


def test_what_a_client_complains_of_is_quoted_on_one_short_line(runtimes, host):
    runtimes.set("docker", refuse="permission denied\n\x1b]0;owned\x07" * 500)
    with pytest.raises(ClientError, match="'docker ps' failed: permission denied; \\?\\]0;owned") as error:
        chosen(host, GPU)
    assert len(str(error.value)) < 800


@pytest.mark.parametrize(
    "behaviour",
    [
        {"prints": "--all"},
        {"prints": "WARNING: old config"},
        {"prints": "abc123"},
        {"shows": "not json"},
        {"shows": "[[]]"},
        {"shows": '[{"Id": "x"}]'},
        {"shows": "[" * 100000},
    ],
)
def test_an_answer_that_makes_no_sense_is_no_order_to_anybody(runtimes, host, behaviour):
    runtimes.add("docker", 1, gpu="")
    runtimes.set("docker", **behaviour)
    with pytest.raises(ClientError) as error:
        chosen(host, GPU)
    assert "docker" in str(error.value)
    assert not runtimes.calls("stop", "start")


def test_a_container_that_ends_between_two_questions_is_not_chosen(runtimes, host):
    runtimes.set("docker", prints=f"{1:064x}")
    assert chosen(host, GPU) == ()


# --- stopping and starting -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("runtime", ["docker", "podman", "nerdctl"])
def test_containers_stop_one_by_one_and_exactly_those_start_in_reverse(fake, runtimes, host, runtime):
    fake.unit(DCGM)
    runtimes.add(runtime, 1, gpu="", status="exited")
    first, second = (runtimes.add(runtime, number, gpu="") for number in (2, 3))
    idle = runtimes.add(runtime, 4, other="")
    stopping = chosen(host, {"container": "gpu", "runtime": runtime}, DCGM)
    asked = []

    def gone(client):
        asked.append((client, frozenset(runtimes.running())))
        return len(asked) != 1

    clients.stop_all(stopping, host, 20, gone=gone)
    assert asked == [
        (second, {first, idle}),
        (second, {first, idle}),
        (first, {idle}),
        (DCGM, {idle}),
    ]
    assert clients.start_all(stopping, host, 20) == {}
    assert runtimes.running() == {first, second, idle}
    assert runtimes.done() == [f"stop {second}", f"stop {first}", f"start {first}", f"start {second}"]
    assert runtimes.calls("stop")[0] == [runtime, "stop", "-t", "20", second.partition(":")[2]]
    assert DCGM in fake.active()


def started(*args):
    """What is said of clients that do not run again."""
    return clients.do_not_run_again(clients.start_all(*args))


def failed_stop(host, *stopping, timeout=20.0, **options):
    with pytest.raises(ClientError) as error:
        clients.stop_all(stopping, host, timeout, **options)
    assert str(error.value).isprintable()
    return error.value


def test_a_container_that_refuses_to_stop_is_named_with_what_was_said(fake, runtimes, host):
    """Elsewhere the play ended in "hook failed", without saying which step and why."""
    fake.unit(DCGM)
    client = runtimes.add(
        "docker", 1, "exporter", gpu="", stop={"refuse": "Error response from daemon: \x1btry later\n"}
    )
    error = failed_stop(host, DCGM, client)
    assert f"{client} could not be stopped: Error response from daemon: ?try later. Look into" in str(error)
    assert error.details == {"unit": client}
    assert runtimes.running() == {client}
    assert DCGM not in fake.active()


def test_a_container_that_does_not_stop_in_time_fails_the_stop(runtimes, host, monkeypatch):
    monkeypatch.setattr(clients, "_ANSWER_SECONDS", 3.0)
    client = runtimes.add("podman", 1, gpu="", stop={"hang": True})
    error = failed_stop(host, client, timeout=0.2)
    assert f"{client} did not stop within 0.2 s. Look into 'podman logs {client[7:19]}'" in str(error)
    pids = (runtimes.folder / "hanging").read_text().split()
    assert all(map(ended, pids))


def test_a_container_that_comes_back_or_leaves_a_process_is_a_failure(runtimes, host):
    back = runtimes.add("docker", 1, "plugin", gpu="", stop={"back": True})
    assert f"{back} (plugin) was stopped and is active again" in str(failed_stop(host, back))
    left = runtimes.add("docker", 2, "trainer", gpu="")
    error = failed_stop(host, left, timeout=3, gone=lambda client: False)
    assert f"{left} (trainer) is stopped, but a process of it still has a GPU open" in str(error)


def test_a_container_that_was_stopped_or_removed_meanwhile_needs_no_stop(runtimes, host):
    stopped = runtimes.add("docker", 1, gpu="", status="exited")
    clients.stop_all((stopped, f"docker:{9:064x}"), host, 20)
    assert not runtimes.calls("stop")


@pytest.mark.parametrize(
    ("start", "told"),
    [
        ({"refuse": "unknown device MIG-1\n"}, "it (exporter) is exited, exit code 1 (unknown device MIG-1). Look"),
        ({"dies": True}, "it ended right after its start"),
        ({"loops": True}, "it ended right after its start"),
    ],
)
def test_a_container_that_does_not_run_again_is_told_and_the_others_are_started(runtimes, host, start, told):
    other = runtimes.add("docker", 1, gpu="", status="exited")
    client = runtimes.add("docker", 2, "exporter", gpu="", status="exited", start=start)
    state_of = runtimes._read()
    state_of["docker"]["containers"][client.partition(":")[2]]["code"] = 1
    runtimes._write(state_of)
    (sentence,) = started((other, client), host, 20)
    assert sentence.startswith(f"{client} ran before and does not run again: ")
    assert told.replace("is exited", "is inactive") in sentence
    assert f"Look into 'docker logs {client[7:19]}', and start it with 'docker start {client[7:19]}'." in sentence
    assert other in runtimes.running()


def test_a_container_that_was_removed_meanwhile_is_told_and_not_started(runtimes, host):
    (sentence,) = started((f"docker:{9:064x}",), host, 20)
    assert "it is not-found now" in sentence
    assert not runtimes.calls("start")


def test_a_container_that_runs_already_is_not_started(runtimes, host):
    client = runtimes.add("docker", 1, gpu="")
    assert clients.start_all((client,), host, 20) == {}
    assert not runtimes.calls("start")


def test_a_container_whose_daemon_ended_meanwhile_is_told_and_the_daemon_is_not_started(fake, runtimes, host):
    client = runtimes.add("docker", 1, gpu="", status="exited")
    fake.unit(DOCKER, "inactive")
    (sentence,) = started((client,), host, 20)
    assert "docker.service is inactive, and docker would start it" in sentence
    assert not runtimes.calls()


@pytest.mark.parametrize(
    ("runtime", "waits"),
    [("docker", [f"Requisite={DOCKER}", f"After={DOCKER}"]), ("podman", [])],
)
def test_while_the_host_boots_a_start_is_left_to_systemd_and_not_waited_for(fake, runtimes, host, runtime, waits):
    """A boot hook that called docker waited for a docker that waited for the hook, for ever."""
    client = runtimes.add(runtime, 1, gpu="", status="exited")
    fake.set(system="starting")
    assert clients.start_all((client,), host, 20) == {}
    assert not runtimes.calls()
    (call,) = [call for call in fake.calls() if call[0] == "systemd-run"]
    assert "--no-block" in call
    assert [word.partition("=")[2] for word in call if word.startswith("--property=")] == waits
    assert call[-3:] == [str(fake.folder / runtime), "start", client.partition(":")[2]]


# --- the timer -----------------------------------------------------------------------------------------------------


def timers(fake):
    return {
        next(word for word in call if word.startswith("--unit=")).partition("=")[2]: call
        for call in fake.calls()
        if call[0] == "systemd-run"
    }


def test_a_timer_for_each_runtime_starts_containers_when_no_change_runs_any_more(fake, runtimes, host, tmp_path):
    own = [runtimes.add("docker", number, gpu="") for number in (1, 2)]
    pod = runtimes.add("podman", 3, gpu="")
    assert clients.arm(PLACES, "t1", 600, (own[0], DCGM, own[1], pod), host) == ""
    names = ("gpufleet-mig-deadman-t1", "gpufleet-mig-deadman-t1-docker", "gpufleet-mig-deadman-t1-podman")
    assert tuple(timers(fake)) == names
    assert timers(fake)[names[0]][-1] == DCGM
    call = timers(fake)[names[1]]
    words = call[call.index("--") + 1 :]
    bin_ = fake.folder
    assert words[:3] == [str(bin_ / "flock"), "--close", "/run/mig/lock"]
    assert words[3:6] == [str(bin_ / "timeout"), "--kill-after=20", "300"]
    assert words[6:] == [str(bin_ / "docker"), "start", *(client[7:] for client in reversed(own))]
    assert {f"--property=Requisite={DOCKER}", f"--property=After={DOCKER}"} <= set(call)
    assert "--setenv=DOCKER_HOST=unix:///run/docker.sock" in call
    assert not [word for word in timers(fake)[names[2]] if word.startswith(("--property=", "--setenv="))]
    assert not runtimes.calls()

    (tmp_path / "root/run/systemd/system").mkdir(parents=True)
    assert clients.disarm("t1", tmp_path / "root") == ""
    assert fake.active() == {DOCKER, "containerd.service"}


def test_the_timer_starts_a_daemon_only_if_the_change_stopped_it(fake, runtimes, host):
    client = runtimes.add("docker", 1, gpu="")
    assert clients.arm(PLACES, "t1", 600, (client, DOCKER), host) == ""
    assert f"--property=Requires={DOCKER}" in timers(fake)["gpufleet-mig-deadman-t1-docker"]


def test_a_timer_that_cannot_be_set_for_one_runtime_is_a_warning_and_the_others_are_set(fake, runtimes, host):
    client = runtimes.add("podman", 1, gpu="")
    (fake.folder / "timeout").unlink()
    told = clients.arm(PLACES, "t1", 600, (DCGM, client), host)
    assert "timeout was not found" in told
    assert tuple(timers(fake)) == ("gpufleet-mig-deadman-t1",)


# --- what operators met --------------------------------------------------------------------------------------------


def test_a_change_of_instances_leaves_kubelet_alone_that_only_mode_and_reset_concern(fake, host):
    """Elsewhere kubelet was restarted for any change, also while the node came up, and the node never came back."""
    fake.unit("kubelet.service")
    fake.unit("dcgm-exporter.service")
    named = [{"unit": "kubelet", "for": ["mode", "reset"]}, "dcgm-exporter"]
    assert chosen(host, *named, kinds={"instances"}) == ("dcgm-exporter.service",)
    assert chosen(host, *named, kinds={"mode"}) == ("kubelet.service", "dcgm-exporter.service")


def test_exactly_what_ran_runs_again_whatever_is_enabled_static_exited_or_known_by_an_old_name(fake, host):
    """Elsewhere every enabled unit was started, static ones were forgotten, and nsvm never counted as running."""
    fake.unit("nvsm.service", SubState="exited", Type="oneshot", UnitFileState="enabled", RemainAfterExit="yes")
    fake.unit(DCGM, "inactive", UnitFileState="enabled")
    fake.unit("dcgm-exporter.service", UnitFileState="static")
    fake.unit("nvsm-core.service", "inactive", LoadState="masked", UnitFileState="masked")
    fake.unit("slurmd.service", UnitFileState="disabled")
    fake.set(aliases={"dcgm.service": DCGM})
    before = fake.active()
    stopping = chosen(host, "nvsm", "nvsm-core", "dcgm-exporter", "dcgm", DCGM, "slurmd")
    clients.stop_all(stopping, host, 20)
    assert fake.active() == before - set(stopping)
    assert clients.start_all(stopping, host, 20) == {}
    assert stopping == ("nvsm.service", "dcgm-exporter.service", "slurmd.service")
    assert fake.active() == before
    assert {call.split()[0] for call in fake.done()} <= {"show", "stop", "start", "reset-failed", "is-system-running"}


def test_exporter_and_plugin_are_never_stopped_or_started_together(fake, runtimes, host):
    """Stopped and started in one go they left a process that no signal ended, and every call to the driver hung."""
    fake.unit("dcgm-exporter.service", stop={"slow": 3})
    plugin = runtimes.add("docker", 1, "device-plugin", gpu="")
    seen = []

    def gone(client):
        seen.append((client, "dcgm-exporter.service" in fake.active(), plugin in runtimes.running()))
        return True

    clients.stop_all(("dcgm-exporter.service", plugin), host, 20, gone=gone)
    assert seen == [("dcgm-exporter.service", False, True), (plugin, False, False)]


def test_programs_are_found_by_their_absolute_path(runtimes, host, fake):
    runtimes.add("docker", 1, gpu="")
    assert clients.arm(PLACES, "t1", 600, (f"docker:{1:064x}",), host) == ""
    (call,) = timers(fake).values()
    assert all(os.path.isabs(word) for word in call[call.index("--") + 1 :] if word.endswith(("flock", "docker")))
