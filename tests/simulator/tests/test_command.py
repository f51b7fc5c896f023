# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The command nvmlsim: each word of it, its exit status, its messages."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from nvmlsim import Simulator

CREATE = """
import pynvml as nv
nv.nvmlInit()
gpu = nv.nvmlDeviceGetHandleByIndex(0)
nv.nvmlDeviceSetMigMode(gpu, 1)
for profile, compute in ((9, 2), (19, 0)):
    nv.nvmlGpuInstanceCreateComputeInstance(nv.nvmlDeviceCreateGpuInstance(gpu, profile), compute)
nv.nvmlDeviceCreateGpuInstance(gpu, 19)
"""


@pytest.fixture
def nvmlsim():
    """Run the command."""

    def run(*words, **options):
        command = [sys.executable, "-m", "nvmlsim", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, check=False, **options)

    return run


@pytest.fixture
def state(tmp_path, nvmlsim):
    """The path of a node with an A100, a T4 and an H100 NVL of 94 GB."""
    path = tmp_path / "node"
    done = nvmlsim("create", path, "--gpus", "1xa100-sxm4-40gb,1xtesla-t4,1xh100-sxm5-94gb")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return path


def test_create_takes_everything_that_describes_a_node(tmp_path, nvmlsim):
    path = tmp_path / "node"
    words = (
        "--gpus 3xa100-sxm4-40gb --driver 535 --chips NS --virtualization passthrough --persistence off "
        "--privileged root --seed x --rename 3g.20gb=3g.19gb --assume passthrough_activation=RESET_REQUIRED"
    )
    assert nvmlsim("create", path, *words.split()).returncode == 0
    state = Simulator(path).describe()
    assert state["driver"] == "535.183.06"
    assert [gpu["chip"] for gpu in state["gpus"]] == ["N", "S", "N"]
    assert {gpu["virtualization"] for gpu in state["gpus"]} == {"passthrough"}
    assert not any(gpu["persistence"] for gpu in state["gpus"])
    assert state["assume"]["passthrough_activation"] == "RESET_REQUIRED"


def test_create_makes_an_existing_node_anew(state, nvmlsim):
    nvmlsim("exec", state, "--", sys.executable, "-c", CREATE)
    assert Simulator(state).layouts()[0]
    assert nvmlsim("create", state, "--gpus", "1xa30-24gb").returncode == 0
    assert Simulator(state).layouts() == [()]


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["create", "STATE", "--gpus", "nonsense"], 1, "no board 'nonsense' is known"),
        (["create", "STATE", "--gpus", "thor-igpu"], 1, "is not simulated"),
        (["create", "STATE", "--gpus", "b200-180gb", "--driver", "550"], 1, "needs driver"),
        (["create", "STATE", "--gpus", "a30-24gb", "--assume", "nonsense=1"], 1, "nonsense"),
        (["create", "STATE", "--gpus", "a30-24gb", "--assume", "a30_counts=perhaps"], 1, "a30_counts"),
        (["create", "STATE", "--gpus", "a30-24gb", "--assume", "nonsense"], 1, "NAME=VALUE"),
        (["create", "STATE", "--gpus", "a30-24gb", "--chips", "X"], 1, "letters N and S"),
        (["create", "/nowhere/node", "--gpus", "a30-24gb"], 1, "/nowhere/node"),
        (["create", "STATE"], 2, "--gpus"),
        (["show", "/nowhere/node"], 1, "no such file"),
        (["show", "/etc/passwd"], 1, "not the state of a simulated node"),
        (["calls", "/nowhere/node"], 1, "no such file"),
        (["exec", "STATE"], 2, "needs a command"),
        (["show", "STATE", "--", "ls"], 2, "takes no command"),
        (["fault", "STATE"], 1, "name of an NVML function"),
        (["fault", "STATE", "nvmlInit"], 1, "needs one of"),
        (["fault", "STATE", "nvmlNo", "--code", "IN_USE"], 1, "no function of NVML"),
        (["reset", "STATE", "--gpu", "9"], 1, "GPU of this node"),
        (["occupy", "STATE", "--gpu", "9", "--", "true"], 1, "GPU"),
        (["dance", "STATE"], 2, "invalid choice"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(state, nvmlsim, words, status, message):
    done = nvmlsim(*[state if word == "STATE" else word for word in words])
    assert done.returncode == status
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_exec_runs_a_command_on_the_node_and_ends_as_it_does(state, nvmlsim):
    count = "import pynvml, sys; pynvml.nvmlInit(); sys.exit(pynvml.nvmlDeviceGetCount())"
    assert nvmlsim("exec", state, "--", sys.executable, "-c", count).returncode == 3
    assert nvmlsim("exec", state, "--", "no-such-command").returncode == 127
    assert nvmlsim("exec", state, "--", "/etc/passwd").returncode == 126


def test_exec_keeps_the_caller_s_environment_and_works_from_any_folder(state, nvmlsim, tmp_path):
    env = {**os.environ, "LD_LIBRARY_PATH": "/somewhere", "OWN": "value"}
    relative = os.path.relpath(state, tmp_path)
    show = 'echo "$OWN $NVMLSIM_STATE ${LD_LIBRARY_PATH##*:}"; cd /'
    done = nvmlsim("exec", relative, "--", "sh", "-c", show, env=env, cwd=tmp_path)
    assert done.stdout == f"value {state} /somewhere\n"


def test_show_draws_what_is_there(state, nvmlsim):
    nvmlsim("exec", state, "--", sys.executable, "-c", CREATE)
    text = nvmlsim("show", state).stdout
    lines = text.splitlines()
    assert lines[0] == "driver 580.95.05, NVML 13.580.95.05, 3 GPUs"
    assert lines[1].startswith("GPU 0  NVIDIA A100-SXM4-40GB  00000000:07:00.0  GPU-")
    assert lines[1].endswith("MIG on")
    assert lines[2].strip() == "|1g.5gb    |1g.5gb    |..........|..........|3g.20gb" + " " * 36 + "|"
    assert "GI 2   MIG 3g.20gb at 4:4" in text
    assert "no compute instance" in text
    assert "no MIG" in text
    assert "partly inferred from h100-nvl-94gb" in text


def test_show_marks_what_is_pending_and_who_holds_what(state, nvmlsim):
    simulator = Simulator(state)
    with simulator.occupy(gpu=0, kind="client", name="dcgm") as holder:
        nvmlsim("exec", state, "--", sys.executable, "-c", CREATE.split("for")[0])
        text = nvmlsim("show", state).stdout
    assert "MIG off, on after a reset or reboot" in text
    assert f"held by {holder.pid} (dcgm, client): the GPU" in text


def test_show_as_json(state, nvmlsim):
    nvmlsim("exec", state, "--", sys.executable, "-c", CREATE)
    shown = json.loads(nvmlsim("show", state, "--json").stdout)
    assert [len(gpu["instances"]) for gpu in shown["gpus"]] == [3, 0, 0]
    assert shown["gpus"][2]["inferred_from"] == "h100-nvl-94gb"
    assert shown["gpus"][0]["inferred"] == []


def test_calls_are_listed_in_order_with_a_summary(state, nvmlsim):
    nvmlsim("exec", state, "--", sys.executable, "-c", CREATE)
    lines = nvmlsim("calls", state).stdout.splitlines()
    assert "nvmlInitWithFlags: SUCCESS" in lines[0]
    assert "8 calls, 6 of them writes" in lines
    assert len(nvmlsim("calls", state, "--writes").stdout.split("8 calls")[0].splitlines()) == 6
    record = json.loads(nvmlsim("calls", state, "--json", "--reset").stdout)
    assert (record["total"], record["writes"]) == (8, 6)
    assert [call["function"] for call in record["calls"]][:3] == [
        "nvmlInitWithFlags",
        "nvmlDeviceGetHandleByIndex_v2",
        "nvmlDeviceSetMigMode",
    ]
    assert json.loads(nvmlsim("calls", state, "--json").stdout)["total"] == 0


def test_occupy_runs_a_process_that_holds_a_place(state, nvmlsim):
    nvmlsim("exec", state, "--", sys.executable, "-c", CREATE)
    ask = (
        "import pynvml as nv, os; nv.nvmlInit(); g = nv.nvmlDeviceGetHandleByIndex(0); "
        "print([(p.pid == os.getpid(), p.gpuInstanceId) for p in nv.nvmlDeviceGetComputeRunningProcesses(g)])"
    )
    done = nvmlsim("occupy", state, "--gpu", "0", "--gi", "2", "--ci", "0", "--", sys.executable, "-c", ask)
    assert done.stdout == "[(True, 2)]\n"
    assert Simulator(state).describe()["gpus"][0]["holders"] == []
    hidden = nvmlsim(
        "occupy", state, "--gpu", "0", "--gi", "2", "--ci", "0", "--hidden", "--", sys.executable, "-c", ask
    )
    assert hidden.stdout == "[]\n"


def test_occupy_ends_as_its_command_does(state, nvmlsim):
    assert nvmlsim("occupy", state, "--gpu", "0", "--", "sh", "-c", "exit 3").returncode == 3
    assert nvmlsim("occupy", state, "--gpu", "0", "--", "sh", "-c", "kill -9 $$").returncode == 137
    assert nvmlsim("occupy", state, "--gpu", "0", "--", "no-such-command").returncode == 127


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_occupy_hands_signals_on_and_cleans_up(state, number):
    command = [sys.executable, "-m", "nvmlsim", "occupy", str(state), "--gpu", "0", "--graphics"]
    wait = (
        "import signal, sys; asked = {signal.SIGTERM, signal.SIGINT}; "
        "signal.pthread_sigmask(signal.SIG_BLOCK, asked); print('ready', flush=True); "
        "sys.exit(7 if signal.sigwait(asked) else 0)"
    )
    process = subprocess.Popen(
        [*command, "--", sys.executable, "-c", wait], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout.readline() == "ready\n"
    assert [holder["kind"] for holder in Simulator(state).describe()["gpus"][0]["holders"]] == ["graphics"]
    process.send_signal(number)
    assert process.wait(timeout=10) == 7
    assert Simulator(state).describe()["gpus"][0]["holders"] == []
    process.stdout.close()


def test_an_occupier_that_is_killed_leaves_no_holder(state):
    command = [sys.executable, "-m", "nvmlsim", "occupy", str(state), "--gpu", "0", "--"]
    process = subprocess.Popen(
        [*command, "sh", "-c", "echo ready; exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"ready\n"
    assert len(Simulator(state).describe()["gpus"][0]["holders"]) == 1
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdin.close()
    assert process.stdout.read() == b""  # the command saw the end of its input and ended
    process.stdout.close()
    deadline = time.monotonic() + 10
    while Simulator(state).describe()["gpus"][0]["holders"] and time.monotonic() < deadline:
        pass
    assert Simulator(state).describe()["gpus"][0]["holders"] == []


def test_fault_sets_and_clears(state, nvmlsim):
    words = ["nvmlDeviceGetCount", "--nth", "2", "--when", "after", "--code", "GPU_IS_LOST", "--gpu", "0"]
    assert nvmlsim("fault", state, *words).returncode == 0
    assert nvmlsim("fault", state, "write", "--kill").returncode == 0
    assert nvmlsim("fault", state, "nvmlInit", "--hang").returncode == 0
    assert nvmlsim("fault", state, "nvmlInit", "--delay-ms", "5").returncode == 0
    assert len(Simulator(state).describe()["faults"]) == 4
    assert nvmlsim("fault", state, "--clear").returncode == 0
    assert Simulator(state).describe()["faults"] == []


def test_events(state, nvmlsim):
    for words in (["reboot"], ["reload"], ["reset", "--gpu", "0"]):
        nvmlsim("exec", state, "--", sys.executable, "-c", CREATE)
        assert Simulator(state).layouts()[0]
        assert nvmlsim(words[0], state, *words[1:]).returncode == 0
        assert Simulator(state).layouts()[0] == ()


def test_assumptions_are_listed_with_their_default_first(nvmlsim):
    text = nvmlsim("assumptions").stdout
    for expected in ("a30_counts=wrong|right", "passthrough_activation=NOT_SUPPORTED|RESET_REQUIRED"):
        assert expected in text


def test_every_assumption_is_in_the_readme(nvmlsim):
    readme = pathlib.Path(__file__).parent.with_name("README.md").read_text(encoding="utf-8").replace("\\|", "|")
    for line in nvmlsim("assumptions").stdout.splitlines():
        assert f"`{line.split()[0].rstrip(':')}`" in readme


def test_every_board_that_is_listed_can_be_made(nvmlsim, tmp_path):
    listed = [line.split()[0] for line in nvmlsim("boards").stdout.splitlines()]
    assert {"a100-sxm4-40gb", "tesla-t4", "dgx-a100"} <= set(listed)
    for name in listed:
        done = nvmlsim("create", tmp_path / "state", "--gpus", name)
        assert (done.returncode, done.stderr) == (0, "")


def test_help_names_every_command(nvmlsim):
    text = nvmlsim("--help").stdout
    for word in (
        "create",
        "exec",
        "show",
        "calls",
        "occupy",
        "fault",
        "reboot",
        "reload",
        "reset",
        "boards",
        "assumptions",
    ):
        assert word in text
