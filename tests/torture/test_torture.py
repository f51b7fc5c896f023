# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The short form of the campaign: always the same cases. The long form is ``torture.py``, told in docs/torture.md."""

from __future__ import annotations

import multiprocessing
import pathlib
import typing as t

import pytest

from ansible_collections.gpufleet.mig.tests.torture import cases, judge, stage, torture

SEED = "continuous"
CASES = 900
PART = 100


@pytest.fixture(scope="module")
def tally():
    """What the cases came to, over all parts: a campaign that never fails anything proves nothing."""
    return torture.Tally()


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, CASES, PART))
def test_whatever_goes_wrong_the_layout_is_the_wanted_one_or_the_one_from_before(tally, first):
    played = torture.play_all(SEED, range(first, first + PART), tally, jobs=2)
    assert not played.bad, "\n".join(torture.in_words(SEED, each) for each in played.bad)


@pytest.mark.slow
def test_rollback_healing_hangs_and_all_else_really_happened(tally):
    if tally.total < CASES:  # run alone, without those before it
        torture.play_all(SEED, range(CASES), tally, jobs=2)
    assert tally.too_rare() == []


def in_a_stage(work: t.Callable[..., t.Any], *arguments: t.Any) -> t.Any:
    """Call something in a process of its own, which may become a stage."""
    context = multiprocessing.get_context("fork")
    with context.Pool(1, initializer=stage.become_a_stage) as pool:
        return pool.apply(work, arguments)


def test_a_case_is_the_same_whenever_it_is_made():
    assert cases.generate("s", 7) == cases.generate("s", 7)
    assert cases.generate("s", 7) != cases.generate("s", 8)


def played_with(change: t.Callable[[dict[str, t.Any]], t.Any]) -> list[str]:
    """The violations found in an undisturbed change after somebody tampered with what was recorded of it."""
    case = cases.generate("tampered", 0)
    case.update(
        topic="nothing",
        gpus=["a100-sxm4-40gb"],
        driver="580.95.05",
        chips="N",
        virtualization="none",
        assume={},
        starts=[{"mode": "on", "layout": [["3g.20gb", 4, 4, [[2, 0, 3]]]]}],
        holders=[],
        promises=[],
        units=[],
    )
    targets = {0: {"on": True, "exact": False, "instances": [["7g.40gb", [7]]]}}
    wish = cases.wish_of("count", {"label": "7g.40gb", "gpus": [0]}, targets)
    orders = {"evict": "none", "allow_reset": False, "recover": "forward", "who": "somebody"}
    case["runs"] = [cases.run_of("change", wish, orders)]
    records = stage.play(case, pathlib.Path(torture.scratch()) / f"tampered-{id(case)}")
    change(records[0])
    return [sentence for verdict in judge.judge(case, records) for sentence in verdict.violations]


def leaves_it_alone(record):
    pass


def loses_an_instance(record):
    record["after"][0]["layout"] = {}


def leaves_the_journal(record):
    record["files"]["journal.json"] = {"steps": []}
    record["in_progress"] = {"running": False}


def leaves_the_lock(record):
    record["locked"] = True


def writes_elsewhere(record):
    for call in record["calls"]:
        if call["write"]:
            call["gpu"] = 3


def claims_a_rollback(record):
    record["result"].update(message="UNKNOWN", rolled_back=True, changed=False)


def forgets_what_is_missing(record):
    record["result"].update(message="UNKNOWN", rolled_back=False, missing=[], recovery="")


def refuses_after_writing(record):
    record["result"] = {"how": "refused", "message": "no", "altered": False, "changed": False, "file_operations": 0}


def remembers_another_layout(record):
    record["files"]["wanted.json"]["gpus"][0]["instances"] = []


TAMPERED = {
    loses_an_instance: "is not as wanted",
    leaves_the_journal: "the journal is still there",
    leaves_the_lock: "still locked",
    writes_elsewhere: "of which nothing is wanted",
    claims_a_rollback: "said to be as before, but",
    forgets_what_is_missing: "gone are ['3g.20gb at 4:4'], listed are []",
    refuses_after_writing: "refused after",
    remembers_another_layout: "what is remembered of GPU 0 is not what it has",
}


@pytest.mark.parametrize("change", [leaves_it_alone, *TAMPERED])
def test_the_judge_sees(change):
    violations = in_a_stage(played_with, change)
    if change is leaves_it_alone:
        assert violations == []
    else:
        assert any(TAMPERED[change] in sentence for sentence in violations), violations


def test_a_campaign_in_which_too_little_happens_is_not_green():
    tally = torture.Tally()
    for number in range(1000):
        tally.add(torture.Played(number, "nothing", ("changed", "converged"), (), ()))
    assert any(sentence.startswith("rolled back") for sentence in tally.too_rare())
    assert any(sentence.startswith("kill") for sentence in tally.too_rare())
