# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Exactly the clients that ran are stopped, one by one, and run again afterwards, whatever systemd does."""

from __future__ import annotations

import os
import pickle
import time

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import bounded, clients, commands, state
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.clients import ClientError
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import Client, WishError
from ansible_collections.gpufleet.mig.tests.unit.plugins.module_utils.engine.fake_systemd import Fake

DCGM = "nvidia-dcgm.service"
EXPORTER = "dcgm-exporter.service"
NVSM = "nvsm.service"
EVERY_KIND = {"instances", "mode", "reset"}
LOGIN = "0::/user.slice/user-0.slice/session-5.scope\n"


@pytest.fixture(name="fake")
def fake_systemd(tmp_path, monkeypatch):
    fake = Fake(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{fake.folder}:{os.environ['PATH']}")
    return fake


@pytest.fixture(name="systemd")
def systemd_of_the_host(fake):
    return clients.Systemd(settle=0.3)


@pytest.fixture(name="root")
def root_of_a_host(tmp_path):
    """A host with a running systemd, and this process in a login."""
    root = tmp_path / "root"
    (root / "run/systemd/system").mkdir(parents=True)
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(LOGIN)
    return root


class Watch:
    """Records what is begun; asks to stop after so many units."""

    def __init__(self, stop_after=None):
        self.begun = []
        self._left = stop_after

    def begin(self, what, seconds=None):
        self.begun.append((what, seconds))

    def check(self):
        if self._left == 0:
            raise bounded.Interrupted("The change was asked to stop (SIGTERM).")
        if self._left is not None:
            self._left -= 1


def chosen(manager, *units, kinds=frozenset(EVERY_KIND), **options):
    return clients.select(clients.parse(list(units)), kinds, manager, **options)


def eventually(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


# --- naming clients ------------------------------------------------------------------------------------------------


def test_names_may_come_without_suffix_and_with_the_kinds_of_change_they_are_for():
    parsed = clients.parse(
        ["nvidia-dcgm", {"unit": "docker.socket", "for": ["mode", "reset"]}, {"unit": "nv_peer.mem"}]
    )
    assert parsed == (
        Client("nvidia-dcgm.service", frozenset(EVERY_KIND)),
        Client("docker.socket", frozenset({"mode", "reset"})),
        Client("nv_peer.mem.service", frozenset(EVERY_KIND)),
    )
    assert clients.parse([{"unit": "a", "for": "reset"}]) == (Client("a.service", frozenset({"reset"})),)
    assert clients.parse([{"unit": "a", "for": "never"}]) == (Client("a.service", frozenset()),)
    assert clients.parse(None) == clients.parse([]) == ()


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("nvidia-dcgm.service", "clients must be a list"),
        ({"unit": "a.service"}, "clients must be a list"),
        ([7], "clients[0] must be the name"),
        (["a.service", {}], "clients[1] must be the name"),
        ([{"unit": "a", "fro": ["mode"]}], "'fro'"),
        ([{"unit": "a", "for": []}], "at least one kind"),
        ([{"unit": "a", "for": 3}], "at least one kind"),
        ([{"unit": "a", "for": ["never", "mode"]}], "never alone"),
        ([{"unit": "a", "for": ["mode", "boot"]}], "'boot'"),
        ([{"unit": "a", "for": [{}]}], "'{}'"),
        (["a b.service"], "'a b.service'"),
        (["nv*"], "'nv*'"),
        (["a;reboot"], "'a;reboot'"),
        (["../a"], "'../a'"),
        (["a\n"], "'a?'"),
        ([""], "''"),
        ([".service"], "'.service'"),
        (["a" * 300], "no name"),
        (["dcgm@"], "template"),
        (["multi-user.target"], "is a target"),
        (["user.slice"], "is a slice"),
    ],
)
def test_a_malformed_client_is_refused_with_its_place(value, told):
    with pytest.raises(WishError) as error:
        clients.parse(value)
    assert told in str(error.value)
    assert str(error.value).isprintable()


# --- which are to be stopped ---------------------------------------------------------------------------------------


def test_only_active_clients_are_chosen_in_the_order_given(fake, systemd):
    fake.unit(EXPORTER, UnitFileState="static")
    fake.unit(DCGM, "inactive", UnitFileState="enabled")
    fake.unit(NVSM, SubState="exited", Type="oneshot")
    fake.unit("slow.service", "activating")
    fake.unit("failed.service", "failed")
    assert chosen(systemd, NVSM, "absent", "failed", DCGM, "slow", EXPORTER) == (NVSM, "slow.service", EXPORTER)
    assert not fake.calls("stop", "start")


def test_two_names_of_one_unit_count_once_under_its_own_name(fake, systemd):
    fake.unit(DCGM)
    fake.set(aliases={"dcgm.service": DCGM})
    assert chosen(systemd, "dcgm", DCGM) == (DCGM,)


def test_only_clients_concerned_by_this_kind_of_change_are_chosen(fake, systemd):
    fake.unit(DCGM)
    fake.unit(EXPORTER)
    named = [{"unit": DCGM, "for": ["mode", "reset"]}, EXPORTER]
    assert chosen(systemd, *named, kinds={"instances"}) == (EXPORTER,)
    assert chosen(systemd, *named, kinds={"instances", "mode"}) == (DCGM, EXPORTER)
    assert chosen(systemd, *named, kinds=set()) == ()


@pytest.mark.parametrize("name", ["nvidia-dcgm.service", "nvidia-dcgm", "dcgm.service", "dcgm"])
def test_a_unit_that_is_never_stopped_is_not_whatever_name_another_entry_has_it_by(fake, systemd, name):
    fake.unit(DCGM)
    fake.unit(EXPORTER)
    fake.set(aliases={"dcgm.service": DCGM})
    never = {"unit": name, "for": "never"}
    assert chosen(systemd, EXPORTER, DCGM, "dcgm", never) == (EXPORTER,)
    assert chosen(systemd, never, "dcgm", EXPORTER, DCGM) == (EXPORTER,)


def test_what_would_take_along_a_unit_that_is_never_stopped_is_refused(fake, systemd):
    fake.unit(DCGM, RequiredBy=EXPORTER)
    fake.unit(EXPORTER)
    with pytest.raises(ClientError, match="would also stop dcgm-exporter.service, which .* never stopped. Take nvidia"):
        chosen(systemd, DCGM, EXPORTER, {"unit": EXPORTER, "for": "never"})
    fake.unit(EXPORTER, "inactive")
    assert chosen(systemd, DCGM, {"unit": EXPORTER, "for": "never"}) == (DCGM,)


def test_a_unit_comes_before_the_one_it_depends_on(fake, systemd):
    fake.unit(DCGM, RequiredBy=EXPORTER)
    fake.unit(EXPORTER, BoundBy="shipper.service")
    fake.unit("shipper.service")
    assert chosen(systemd, DCGM, "shipper", EXPORTER) == ("shipper.service", EXPORTER, DCGM)


def test_a_named_unit_that_would_be_stopped_along_is_chosen_whatever_change_it_is_for(fake, systemd):
    fake.unit(DCGM, ConsistsOf=EXPORTER)
    fake.unit(EXPORTER)
    assert chosen(systemd, DCGM, {"unit": EXPORTER, "for": "reset"}, kinds={"mode"}) == (EXPORTER, DCGM)


def test_units_that_require_each_other_are_chosen_once(fake, systemd):
    fake.unit(DCGM, RequiredBy=EXPORTER)
    fake.unit(EXPORTER, RequiredBy=DCGM)
    assert sorted(chosen(systemd, DCGM, EXPORTER)) == [EXPORTER, DCGM]


@pytest.mark.parametrize("dependency", ["RequiredBy", "RequisiteOf", "BoundBy", "ConsistsOf", "PropagatesStopTo"])
def test_what_would_take_along_a_unit_that_nobody_named_is_refused(fake, systemd, dependency):
    fake.unit(DCGM, **{dependency: "trainer.service idle.service"})
    fake.unit("trainer.service")
    fake.unit("idle.service", "inactive")
    with pytest.raises(ClientError, match=r"Stopping nvidia-dcgm.service would also stop trainer\.service.* Name it"):
        chosen(systemd, DCGM)


def test_a_unit_that_a_target_requires_is_refused_since_a_target_cannot_be_named(fake, systemd):
    fake.unit(DCGM, RequiredBy="multi-user.target")
    fake.unit("multi-user.target")
    with pytest.raises(ClientError, match=r"also stop multi-user\.target.* Take nvidia-dcgm\.service off the clients"):
        chosen(systemd, DCGM)


def test_an_inactive_dependent_is_no_obstacle(fake, systemd):
    fake.unit(DCGM, RequiredBy="idle.service")
    fake.unit("idle.service", "inactive")
    assert chosen(systemd, DCGM) == (DCGM,)


@pytest.mark.parametrize(
    ("properties", "told"),
    [
        ({"LoadState": "masked"}, "active but masked"),
        ({"LoadState": "not-found"}, "active but not-found"),
        ({"Transient": "yes"}, "transient"),
    ],
)
def test_what_could_not_be_started_again_is_refused_before_anything_stops(fake, systemd, properties, told):
    fake.unit(EXPORTER)
    fake.unit(DCGM, **properties)
    with pytest.raises(ClientError, match=told):
        chosen(systemd, EXPORTER, DCGM)
    assert fake.active() == {DCGM, EXPORTER}


def test_the_unit_that_runs_the_change_is_refused(fake, systemd, root):
    fake.unit("ansible-pull.service")
    (root / "proc/self/cgroup").write_text("0::/system.slice/ansible-pull.service/worker\n")
    with pytest.raises(ClientError, match="ansible-pull.service is what this process runs in"):
        chosen(systemd, "ansible-pull", root=root)


def test_a_namesake_in_a_users_own_systemd_is_not_taken_for_the_unit_that_runs_the_change(fake, systemd, root):
    fake.unit("jupyter.service")
    (root / "proc/self/cgroup").write_text("0::/user.slice/user-7.slice/user@7.service/app.slice/jupyter.service\n")
    assert chosen(systemd, "jupyter", root=root) == ("jupyter.service",)


def test_nothing_is_chosen_where_no_systemd_runs(fake, root):
    (root / "run/systemd/system").rmdir()
    manager = clients.manager_of(root)
    assert chosen(manager, DCGM, EXPORTER) == ()
    assert not fake.calls()
    with pytest.raises(ClientError, match="systemd, which does not run"):
        manager.start(DCGM, 1)
    with pytest.raises(ClientError, match="systemd, which does not run"):
        manager.stop(DCGM, 1)


def test_systemd_is_asked_where_it_runs(root):
    assert isinstance(clients.manager_of(root), clients.Host)


# --- stopping ------------------------------------------------------------------------------------------------------


def test_clients_stop_one_after_the_other_and_start_in_reverse(fake, systemd):
    for unit in (NVSM, EXPORTER, DCGM):
        fake.unit(unit)
    watch = Watch()
    clients.stop_all((NVSM, EXPORTER, DCGM), systemd, 20, watch)
    assert fake.active() == set()
    assert clients.start_all((NVSM, EXPORTER, DCGM), systemd, 20, watch) == {}
    assert fake.active() == {NVSM, EXPORTER, DCGM}
    assert fake.done("stop", "start") == [
        *(f"stop {NVSM}", f"stop {EXPORTER}", f"stop {DCGM}"),
        *(f"start {DCGM}", f"start {EXPORTER}", f"start {NVSM}"),
    ]
    assert [what for what, _seconds in watch.begun] == fake.done("stop", "start")
    assert all(seconds > 20 for _what, seconds in watch.begun)


def test_no_unit_is_ever_enabled_disabled_or_unmasked(fake, systemd):
    fake.unit(DCGM, UnitFileState="disabled")
    clients.stop_all(chosen(systemd, DCGM), systemd, 20)
    clients.start_all((DCGM,), systemd, 20)
    assert {call.split()[0] for call in fake.done()} == {"show", "stop", "reset-failed", "start", "is-system-running"}


def test_a_client_is_waited_for_until_it_has_ended_and_let_go_of_the_gpus(fake, systemd):
    fake.unit(DCGM, stop={"slow": 3})
    asked = []

    def gone(unit):
        asked.append(unit)
        return len(asked) == 3

    clients.stop_all((DCGM,), systemd, 20, gone=gone)
    assert asked == [DCGM] * 3
    assert not fake.calls("start")


@pytest.mark.parametrize("ended", ["failed", "inactive"])
def test_a_client_that_has_ended_by_itself_needs_no_stop(fake, systemd, ended):
    fake.unit(DCGM, ended)
    clients.stop_all((DCGM, "removed.service"), systemd, 20)
    assert not fake.calls("stop")


def started(*args):
    """What is said of clients that do not run again."""
    return clients.do_not_run_again(clients.start_all(*args))


def failed_stop(manager, *units, timeout=20.0, **options):
    with pytest.raises(ClientError) as error:
        clients.stop_all(units, manager, timeout, **options)
    assert str(error.value).isprintable()
    return error.value


def test_a_client_that_refuses_to_stop_is_named_with_what_systemctl_said_and_ends_the_stopping(fake, systemd):
    fake.unit(EXPORTER)
    fake.unit(
        DCGM, stop={"refuse": "Failed to stop nvidia-dcgm.service:\n  Operation refused, \x1b[31mdependency only\n"}
    )
    fake.unit(NVSM)
    error = failed_stop(systemd, EXPORTER, DCGM, NVSM)
    assert "nvidia-dcgm.service could not be stopped: Failed to stop" in str(error)
    assert "Operation refused, ?[31mdependency only" in str(error)
    assert "journalctl -u nvidia-dcgm.service" in str(error)
    assert error.details == {"unit": DCGM}
    assert fake.active() == {DCGM, NVSM}
    assert fake.done("stop", "start") == [f"stop {EXPORTER}", f"stop {DCGM}"]
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_client_that_does_not_stop_in_time_is_started_again_too_since_it_may_end_yet(fake, systemd):
    fake.unit(EXPORTER)
    fake.unit(DCGM, stop={"hang": 100})
    error = failed_stop(systemd, EXPORTER, DCGM, timeout=0.5)
    assert "nvidia-dcgm.service did not stop within 0.5 s" in str(error)
    clients.start_all((EXPORTER, DCGM), systemd, 0.5)
    assert fake.done("start") == [f"start {DCGM}", f"start {EXPORTER}"]
    pids = (fake.folder / "hanging").read_text().split()
    eventually(lambda: not any(map(is_running, pids)))


def test_a_client_that_is_still_stopping_at_the_deadline_is_a_failure(fake, systemd):
    fake.unit(DCGM, stop={"slow": 1000})
    assert "still stopping after 0.3 s" in str(failed_stop(systemd, DCGM, timeout=0.3))


def test_a_client_that_comes_back_by_itself_is_a_failure(fake, systemd):
    fake.unit(DCGM, stop={"back": True})
    assert "is active again" in str(failed_stop(systemd, DCGM))


def test_a_process_that_outlives_its_unit_is_a_failure(fake, systemd):
    fake.unit(DCGM)
    error = failed_stop(systemd, DCGM, timeout=3, gone=lambda unit: False)
    assert "is stopped, but a process of it still has a GPU open after 3 s" in str(error)


def test_whoever_is_asked_to_stop_between_two_clients_leaves_the_second_alone(fake, systemd):
    fake.unit(EXPORTER)
    fake.unit(DCGM)
    with pytest.raises(bounded.Interrupted):
        clients.stop_all((EXPORTER, DCGM), systemd, 20, Watch(stop_after=1))
    assert fake.done("stop", "start") == [f"stop {EXPORTER}"]


# --- starting ------------------------------------------------------------------------------------------------------


def test_every_client_is_tried_although_one_does_not_start(fake, systemd):
    fake.unit(NVSM, "inactive")
    fake.unit(EXPORTER, "inactive", start={"refuse": "Job for dcgm-exporter.service failed.\nSee \x07 the journal.\n"})
    fake.unit(DCGM, "inactive")
    (sentence,) = started((NVSM, EXPORTER, DCGM), systemd, 20)
    assert sentence == (
        "dcgm-exporter.service ran before and does not run again: it is failed, exit-code (Job for"
        " dcgm-exporter.service failed.; See ? the journal). Look into 'journalctl -u dcgm-exporter.service', and start"
        " it with 'systemctl start dcgm-exporter.service'."
    )
    assert fake.active() == {NVSM, DCGM}


def test_a_client_masked_or_removed_meanwhile_is_told_and_not_started(fake, systemd):
    fake.unit(DCGM, "inactive", LoadState="masked")
    sentences = started((DCGM, "gone.service"), systemd, 20)
    assert [sentence.split(". ")[0] for sentence in sentences] == [
        "gone.service ran before and does not run again: it is not-found now",
        "nvidia-dcgm.service ran before and does not run again: it is masked now",
    ]
    assert not fake.calls("start")


def test_a_client_that_runs_already_is_not_started(fake, systemd):
    fake.unit(DCGM)
    assert clients.start_all((DCGM,), systemd, 20) == {}
    assert not fake.calls("start")


def test_a_client_that_waits_to_be_restarted_does_not_run_yet(fake, systemd):
    fake.unit(DCGM, "activating", SubState="auto-restart", start={"dies": True})
    (sentence,) = started((DCGM,), systemd, 20)
    assert "it ended right after its start" in sentence


def test_a_client_that_does_not_start_in_time_is_told(fake, systemd):
    fake.unit(DCGM, "inactive", start={"hang": True})
    (sentence,) = started((DCGM,), systemd, 0.5)
    assert "it is activating (it did not start within 0.5 s)" in sentence
    pids = (fake.folder / "hanging").read_text().split()
    eventually(lambda: not any(map(is_running, pids)))


@pytest.mark.parametrize("how", ["dies", "loops"])
def test_a_client_that_ends_right_after_its_start_is_told(fake, systemd, how):
    fake.unit(DCGM, "inactive", start={how: True})
    (sentence,) = started((DCGM,), systemd, 20)
    assert "it ended right after its start" in sentence


@pytest.mark.parametrize("how", ["dies", "loops"])
def test_what_happens_until_the_last_look_counts_on_a_busy_node_too(fake, systemd, monkeypatch, how):
    monkeypatch.setattr(clients, "_POLL_SECONDS", 0.5)  # longer than the time to settle
    fake.unit(DCGM, "inactive", start={how: True})
    (sentence,) = started((DCGM,), systemd, 20)
    assert "it ended right after its start" in sentence


def test_a_oneshot_that_has_done_its_work_counts_as_started(fake, systemd):
    fake.unit(DCGM, "inactive", Type="oneshot", start={"finishes": True})
    assert clients.start_all((DCGM,), systemd, 20) == {}


def test_a_client_that_was_restarted_too_often_with_another_layout_is_started_all_the_same(fake, systemd):
    fake.unit(DCGM, "failed", Result="exit-code", start={"limit": True})
    assert clients.start_all((DCGM,), systemd, 20) == {}
    assert fake.active() == {DCGM}
    assert fake.done("start", "reset-failed") == [f"reset-failed {DCGM}", f"start {DCGM}"]


def test_while_the_host_boots_a_start_is_queued_and_not_waited_for(fake, systemd):
    fake.unit(DCGM, "inactive")
    fake.set(system="starting")
    assert clients.start_all((DCGM,), systemd, 20) == {}
    assert [call for call in fake.calls("start") if "--no-block" not in call] == []


# --- what systemd may do -------------------------------------------------------------------------------------------


def test_a_systemd_that_does_not_answer_is_given_up(fake, systemd, monkeypatch):
    monkeypatch.setattr(clients, "_ANSWER_SECONDS", 0.5)
    fake.unit(DCGM)
    fake.set(systemctl={"hang": True})
    with pytest.raises(ClientError, match="systemd does not tell how nvidia-dcgm.service is"):
        chosen(systemd, DCGM)
    pids = (fake.folder / "hanging").read_text().split()
    eventually(lambda: not any(map(is_running, pids)))


def test_every_client_is_named_that_a_silent_systemd_does_not_start(fake, systemd, monkeypatch):
    monkeypatch.setattr(clients, "_ANSWER_SECONDS", 0.3)
    fake.set(systemctl={"hang": True})
    sentences = started((EXPORTER, DCGM), systemd, 20)
    assert [sentence.split()[0] for sentence in sentences] == [DCGM, EXPORTER]


def test_a_systemctl_that_cannot_show_a_unit_is_quoted(fake, systemd):
    fake.set(systemctl={"refuse": "Failed to connect to bus"})
    with pytest.raises(ClientError, match="cannot show nvidia-dcgm.service: Failed to connect to bus"):
        chosen(systemd, DCGM)


def test_hostile_text_of_systemd_stays_one_short_printable_line(fake, systemd):
    fake.unit(DCGM, stop={"refuse": "\x1b]0;owned\x07\n" * 1000 + "\ud800".encode("utf-8", "replace").decode()})
    assert len(str(failed_stop(systemd, DCGM))) < 1000


def test_a_name_that_systemd_invents_is_not_handed_back_to_it(fake, systemd):
    fake.unit(DCGM, Id="--force; reboot\tnow")
    with pytest.raises(ClientError, match=r"'--force; reboot\?now', which is no name"):
        chosen(systemd, DCGM)


def test_missing_commands_are_told(systemd, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(commands, "_STANDARD_PATH", str(tmp_path))
    with pytest.raises(ClientError, match="systemctl was not found"):
        systemd.state(DCGM)


# --- the timer and the scope ---------------------------------------------------------------------------------------

PLACES = state.Places("/var/lib/gpufleet-mig", "/run/a $b")


def test_a_timer_starts_what_was_stopped_when_no_change_runs_any_more_unless_it_is_taken_back(fake, systemd, root):
    assert clients.arm(PLACES, "t1", 600.4, (EXPORTER, DCGM), systemd) == ""
    assert fake.active() == {"gpufleet-mig-deadman-t1.timer"}
    (call,) = [call for call in fake.calls() if call[0] == "systemd-run"]
    assert "--on-active=600s" in call
    flock, close, lock, systemctl, *words = call[call.index("--") + 1 :]
    assert os.path.isabs(flock)
    assert (os.path.basename(flock), close) == ("flock", "--close")
    assert lock == "/run/a $$b/lock"
    assert systemctl == str(fake.folder / "systemctl")
    assert words == ["--no-block", "--no-ask-password", "start", "--", DCGM, EXPORTER]
    assert clients.disarm("t1", root) == ""
    assert fake.active() == set()


def test_a_timer_whose_command_waits_for_the_lock_is_taken_back_too(fake, root):
    fake.unit("gpufleet-mig-deadman-t1.service")
    assert clients.disarm("t1", root) == ""
    assert fake.active() == set()


def test_a_timer_that_cannot_be_set_is_a_warning(fake, systemd):
    fake.set(**{"systemd-run": {"refuse": "Failed to start transient timer unit: \x00no"}})
    told = clients.arm(PLACES, "t1", 600, (DCGM,), systemd)
    assert told.endswith("breaks off: Failed to start transient timer unit: ?no.")


def test_no_timer_is_set_that_could_start_clients_in_the_middle_of_a_change(fake, systemd, monkeypatch):
    monkeypatch.setenv("PATH", str(fake.folder))
    monkeypatch.setattr(commands, "_STANDARD_PATH", str(fake.folder))
    assert "flock was not found" in clients.arm(PLACES, "t1", 600, (DCGM,), systemd)
    assert not fake.calls()


def test_a_timer_that_is_not_there_needs_not_be_taken_back(fake, root):
    assert clients.disarm("t2", root) == ""


def test_a_timer_that_does_not_stop_is_told(fake, root):
    fake.unit("gpufleet-mig-deadman-t1.timer", stop={"refuse": "no\n"})
    told = clients.disarm("t1", root)
    assert told == (
        'The timer that starts clients could not be stopped: no. Do it with "systemctl stop'
        " 'gpufleet-mig-deadman-t1*'\"."
    )


def test_no_timer_is_set_or_taken_back_without_systemd(fake, tmp_path):
    assert clients.arm(PLACES, "t1", 600, (DCGM,), clients.NoManager()) == ""
    assert clients.disarm("t1", tmp_path) == ""
    assert not fake.calls()


def test_a_process_of_a_login_moves_into_a_scope_of_its_own(fake, root):
    fake.set(moved=str(root / "proc/self/cgroup"))
    watch = Watch()
    assert clients.leave_session("t1", watch, root) == ""
    (call,) = fake.calls()
    assert f"gpufleet-mig-t1-{os.getpid()}.scope" in call
    assert call[call.index("PIDs") : call.index("PIDs") + 4] == ["PIDs", "au", "1", str(os.getpid())]
    assert [what for what, _seconds in watch.begun] == ["leave the login session"]


@pytest.mark.parametrize(
    "groups",
    [
        "1:name=systemd:/user.slice/user-0.slice/session-5.scope\n0::/\n",
        "0::/user.slice/user-1000.slice/user@1000.service/app.slice/run.scope\n",
        "12:memory:/elsewhere\n0::/session-c1.scope\n",
    ],
)
def test_every_kind_of_login_is_recognised(fake, root, groups):
    (root / "proc/self/cgroup").write_text(groups)
    fake.set(moved=str(root / "proc/self/cgroup"))
    assert clients.leave_session("t1", None, root) == ""
    assert len(fake.calls()) == 1


@pytest.mark.parametrize("groups", ["0::/system.slice/ssh.service\n", "3:cpu:/user.slice\n0::/\n", ""])
def test_a_process_that_is_in_no_login_stays_where_it_is(fake, root, groups):
    (root / "proc/self/cgroup").write_text(groups)
    assert clients.leave_session("t1", None, root) == ""
    assert not fake.calls()


def test_a_scope_that_is_refused_or_never_comes_is_a_warning(fake, root, monkeypatch):
    monkeypatch.setattr(clients, "_ANSWER_SECONDS", 0.3)
    assert clients.leave_session("t1", None, root).endswith("systemd accepted it and did not do it.")
    fake.set(busctl={"refuse": "Call failed: Connection timed out"})
    assert clients.leave_session("t1", None, root).endswith("Call failed: Connection timed out.")
