# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Files of the controller are written all or not at all, and nobody ever reads half of one."""

from __future__ import annotations

import errno
import os

import pytest

from ansible_collections.gpufleet.mig.plugins.plugin_utils import _files


def tree(folder):
    """Every file below a folder with its content."""
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_files_and_missing_folders_are_made_with_their_permissions(tmp_path):
    path = str(tmp_path / "new" / "folder" / "file")
    _files.write({path: b"content"}, 0o640)
    assert tree(tmp_path) == {"new/folder/file": "content"}
    assert os.stat(path).st_mode & 0o777 == 0o640


def test_a_reader_that_has_the_old_file_open_reads_it_to_its_end(tmp_path):
    path = tmp_path / "file"
    path.write_text("old content")
    with path.open() as reader:
        _files.write({str(path): b"new"}, 0o644)
        assert reader.read() == "old content"
    assert path.read_text() == "new"


def test_drafts_have_names_that_node_exporter_and_ansible_do_not_read(tmp_path, monkeypatch):
    seen: list[str] = []
    replace = os.replace

    def watched(draft, path):
        seen.extend(os.listdir(tmp_path))
        replace(draft, path)

    monkeypatch.setattr(os, "replace", watched)
    _files.write({str(tmp_path / "mig.prom"): b"", str(tmp_path / "a.yml"): b""}, 0o644)
    drafts = [name for name in seen if name not in ("mig.prom", "a.yml")]
    assert drafts
    assert all(name.startswith(".") and name.endswith(".tmp") for name in drafts)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_full_disk_changes_no_file_and_leaves_nothing_behind(tmp_path, monkeypatch, code):
    (tmp_path / "a").write_text("old")
    synced = []

    def sync(descriptor):
        synced.append(descriptor)
        if len(synced) == 3:
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", sync)
    with pytest.raises(_files.WriteProblem, match=f"c' cannot be written on the controller: {os.strerror(code)}"):
        _files.write({str(tmp_path / name): b"new" for name in "abcd"}, 0o644)
    assert tree(tmp_path) == {"a": "old"}


def test_a_place_that_cannot_be_taken_leaves_no_drafts(tmp_path):
    (tmp_path / "b").mkdir()
    with pytest.raises(_files.WriteProblem, match="b' cannot be written on the controller"):
        _files.write({str(tmp_path / name): b"new" for name in "abc"}, 0o644)
    assert tree(tmp_path) == {"a": "new"}


def test_a_long_name_still_has_a_draft(tmp_path):
    name = "x" * 250
    _files.write({str(tmp_path / name): b""}, 0o644)
    assert tree(tmp_path) == {name: ""}


def test_only_files_with_other_content_differ(tmp_path):
    (tmp_path / "same").write_text("x")
    (tmp_path / "other").write_text("y")
    paths = [str(tmp_path / name) for name in ("same", "other", "missing")]
    assert _files.differing(dict.fromkeys(paths, b"x")) == paths[1:]


def test_a_file_of_somebody_else_is_not_written_over(tmp_path):
    (tmp_path / "ours").write_text("# mark\nx")
    (tmp_path / "theirs").write_text("x # mark")
    _files.require_own([str(tmp_path / "ours"), str(tmp_path / "missing")], b"# mark")
    with pytest.raises(_files.WriteProblem, match=r"theirs' is there and was not written by this task.*Nothing was"):
        _files.require_own([str(tmp_path / "ours"), str(tmp_path / "theirs")], b"# mark")


def test_a_path_below_a_file_is_said_in_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(_files.WriteProblem, match="Not a directory. Correct that, and run again"):
        _files.differing({str(tmp_path / "file" / "x"): b""})
