# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Files are written where the controller is, whatever the host of the task is, and only where they belong."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest
from ansible.parsing.dataloader import DataLoader

from ansible_collections.gpufleet.mig.plugins.action import controller_files


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs the action in an empty folder; its connection must not be used."""
    monkeypatch.chdir(tmp_path)

    def run_it(check_mode=False, diff=False, **arguments):
        task = MagicMock(args=arguments, async_val=0, check_mode=check_mode, diff=diff, action="controller_files")
        connection = MagicMock(exec_command=None, put_file=None)
        action = controller_files.ActionModule(task, connection, MagicMock(), DataLoader(), MagicMock(), MagicMock())
        action._execute_module = None
        return action.run(task_vars={})

    return run_it


def test_a_file_is_written_once(run, tmp_path):
    first = run(files={"x/a.txt": "größe\n"})
    again = run(files={"x/a.txt": "größe\n"})
    assert (first["changed"], first["written"]) == (True, [str(tmp_path / "x" / "a.txt")])
    assert (again["changed"], again["written"], again["paths"]) == (False, [], first["paths"])
    assert (tmp_path / "x" / "a.txt").read_text(encoding="utf-8") == "größe\n"


def test_check_mode_predicts_and_writes_nothing(run, tmp_path):
    assert run(check_mode=True, files={"a": "x"})["changed"]
    assert not list(tmp_path.iterdir())
    (tmp_path / "a").write_text("x")
    assert not run(check_mode=True, files={"a": "x"})["changed"]


def test_diff_shows_only_what_changes(run, tmp_path):
    (tmp_path / "same").write_text("x")
    (tmp_path / "other").write_text("y")
    diff = run(check_mode=True, diff=True, files={"same": "x", "other": "x", "new": "x"})["diff"]
    assert [(each["before"], each["after"]) for each in diff] == [("y", "x"), ("", "x")]
    assert "diff" not in run(check_mode=True, files={"other": "x"})


def test_no_files_are_no_change(run, tmp_path):
    assert not run(files={})["changed"]
    assert not list(tmp_path.iterdir())


def test_a_home_is_looked_up_and_an_absolute_path_stays(run, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    result = run(files={"~/a": "", str(tmp_path / "b"): ""})
    assert result["paths"] == [str(tmp_path / "home" / "a"), str(tmp_path / "b")]


@pytest.mark.parametrize("name", ["../a", "/etc/a", "x/../../a", "~/a"])
def test_no_name_leads_out_of_a_folder(run, tmp_path, name):
    result = run(folder="ex", files={"good": "", name: ""})
    assert result["failed"]
    assert "is not inside of the folder" in result["msg"]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["", "x/", "folder"])
def test_the_name_of_a_folder_is_no_file(run, tmp_path, name):
    (tmp_path / "folder").mkdir()
    assert "is not the name of a file" in run(files={name: ""})["msg"]


@pytest.mark.parametrize("content", [None, 7, ["x"], {"a": 1}])
def test_data_is_not_guessed_to_be_text(run, content):
    result = run(files={"a": content})
    assert (result["failed"], result["changed"]) == (True, False)
    assert "to_nice_json" in result["msg"]


def test_text_that_is_no_unicode_is_written_all_the_same(run, tmp_path):
    assert not run(files={"a": "x\udcff"}).get("failed")
    assert (tmp_path / "a").read_bytes() == b"x?"


@pytest.mark.parametrize("mode", ["u=rw", "8", "-1", "7777777"])
def test_permissions_are_an_octal_number(run, tmp_path, mode):
    assert "it must be an octal number such as '0644'" in run(files={"a": ""}, mode=mode)["msg"]
    assert not list(tmp_path.iterdir())


def test_a_file_of_somebody_else_keeps_all_files_as_they_are(run, tmp_path):
    (tmp_path / "b").write_text("mine")
    result = run(files={"a": "# mark\n", "b": "# mark\n"}, mark="# mark")
    assert (result["failed"], result["changed"]) == (True, False)
    assert "was not written by this task" in result["msg"]
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_check_mode_says_what_a_real_run_would_refuse(run, tmp_path):
    (tmp_path / "b").write_text("mine")
    assert run(check_mode=True, files={"b": "# mark\n"}, mark="# mark")["failed"]


def test_a_folder_that_cannot_be_made_is_said_in_one_sentence(run, tmp_path):
    (tmp_path / "file").write_text("")
    result = run(folder="file", files={"a": ""})
    assert (result["failed"], result["changed"]) == (True, False)
    assert "cannot be written on the controller: Not a directory" in result["msg"]
