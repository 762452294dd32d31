"""Known bugs of incremental engines: the catalogue, with a test for each.

- a left join emits (A, null) -1 for a second match: test_semantics.py
  `test_case_6_left_join_pads_once_per_left_row`, and here
  `test_second_match_does_not_retract_padded_row_again`
- a count emits (k, 0): test_semantics.py
  `test_case_3_emptied_key_is_only_retracted_from_counts`
- min ignores copies and returns what was retracted: test_semantics.py
  `test_min_ignores_retracted_duplicate_value`
- distinct merges NaN with null: test_semantics.py
  `test_nan_and_null_are_different_values_and_groups`
- rows of equal hashes merge: here `test_rows_with_half_equal_hashes_stay_apart` and
  `test_programs_do_not_depend_on_hashes`; test_semantics.py `test_rows_of_equal_hashes_stay_apart`
- compaction drops a whole key when one of its rows cancels: here
  `test_merge_of_cancelled_row_keeps_other_rows_of_key`
- reduce misses least upper bounds in nested loops: test_loops.py
  `test_bound_of_three_rounds_is_reached_in_nested_loop`; bounds of two, at random, in
  test_fixpoints.py `test_mutually_recursive_variables_share_rounds`
- times are sorted by an order that is not transitive: test_loops.py
  `test_round_runs_after_all_earlier_rounds` and
  `test_rows_of_one_time_are_gathered_once`
- a join loses what comes while a shared trace is merged: here
  `test_epoch_during_merge_of_shared_trace_is_not_lost`
- "already joined" is taken from merged traces: here
  `test_pairs_are_made_once_when_epoch_merges_traces`
- distinct inserts a row that was removed unseen: test_semantics.py
  `test_removing_an_unseen_row_inserts_it_nowhere`
- a loop without consolidation never ends: test_loops.py
  `test_cancelling_pairs_do_not_circulate_in_loop`
- ranking what is left of deletions resurrects keys: test_top_k.py
  `test_rank_of_removed_groups_stays_empty`, and here
  `test_rank_ignores_deleted_rows`
- equal recursive fragments interfere: test_loop.py
  `test_equal_loops_do_not_interfere`, and test_loops.py
  `test_loop_survives_drop_of_equal_loop`
- a closure that comes and goes leaks rows: test_loop.py
  `test_removed_chain_leaves_no_rows_and_no_state`, and test_loops.py
  `test_cancelled_rows_of_closure_do_not_pile_up`
- a retry writes a name again: test_part_file.py `test_two_attempts_never_write_one_file`, and
  test_recovery.py `test_retried_epoch_writes_files_of_its_own`
- a checkpoint lacks the state of loops, and of what no output depends on:
  test_recovery.py `test_checkpoint_contains_state_of_loops` and
  `test_checkpoint_contains_state_without_output`
- files are deleted that a slow reader still needs: test_opening.py
  `test_reader_follows_merges_checkpoints_and_new_owners`, and test_recovery.py
  `test_slow_reader_keeps_merged_and_deleted_files` and
  `test_reader_restarts_when_its_files_are_deleted`
- a second quick restart certifies what is half there: test_recovery.py
  `test_second_kill_after_restart_keeps_next_epoch_right`; with real kills, at
  random, in test_killed_under_load.py
  `test_killed_process_loses_no_returned_epoch_and_continues`
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import random_programs
from checks.checking import change, count, merge_all, net, run
from hypothesis import given
from hypothesis import strategies as st
from internals import merge_trace, traces_of
from models.batch_model import weak_hashes

from nosync_nb import Collection, Session, rows
from nosync_nb.session.maintenance import maintenance
from nosync_nb.trace import Merge, compaction

pytestmark = pytest.mark.usefixtures("no_disk")


def test_every_bug_names_existing_tests() -> None:
    assert __doc__ is not None
    here = Path(__file__)
    for bug in re.split(r"^- ", __doc__, flags=re.MULTILINE)[1:]:
        file, held = here.name, 0
        for name, test in re.findall(r"\b(here|test_\w+\.py)\b|`(test_\w+)`", bug):
            if name:
                file = here.name if name == "here" else name
                continue
            tree = ast.parse(next(here.parents[2].rglob(file)).read_text())
            assert test in {f.name for f in tree.body if isinstance(f, ast.FunctionDef)}, bug
            held += 1
        assert held, bug


# -- joins -----------------------------------------------------------------------------------------


def test_second_match_does_not_retract_padded_row_again(session: Session) -> None:
    a, b = session.input("a", "k int, v string"), session.input("b", "k int, w string")
    left = session.stage("left", a.join(b, on="k", how="left"))
    change(session, a, {(1, "A"): 2})
    assert net(left) == {(1, "A", None): 2}
    change(session, b, {(1, "X"): 1, (1, "Y"): 2})
    assert net(left) == {(1, "A", None): -2, (1, "A", "X"): 2, (1, "A", "Y"): 4}
    change(session, b, {(1, "X"): 1, (1, "Z"): 1})
    assert net(left) == {(1, "A", "X"): 2, (1, "A", "Z"): 2}
    change(session, b, {(1, "X"): -2, (1, "Y"): -2, (1, "Z"): -1})
    assert count(left) == {(1, "A", None): 2}


def pairs(left: Sequence[Any], right: Sequence[Any]) -> dict[Any, int]:
    """The join of two collections by their first column."""
    return dict(Counter((x[0], x[1], y[1]) for x in left for y in right if x[0] == y[0]))


def test_epoch_during_merge_of_shared_trace_is_not_lost(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merge is computed, an epoch changes both sides of all joins, then the merge is adopted."""
    a, b = session.input("a", "k int, v int"), session.input("b", "k int, w int")
    other = b.rename({"w": "u"})
    inner = session.stage("inner", a.join(b, on="k"))
    again = session.stage("again", a.join(other, on="k"))
    itself = session.stage("itself", b.join(other, on="k"))
    merged = maintenance.merge_ranges

    def slowly(*arguments: Any) -> Any:
        made = merged(*arguments)
        a.insert([(1, session.now), (2, session.now)])
        a.remove([(1, 0)])
        change(session, b, {(1, session.now): 1, (2, 0): -1})
        return made

    a.insert([(1, 0)] * 9)
    change(session, b, {(1, 0): 1, (2, 0): 9})
    change(session, b, {(3, 0): 1})
    a.insert([(3, 0)])
    session.commit()
    monkeypatch.setattr(compaction, "YOUNG_ROWS", 0)  # or the epoch itself merges them
    planned: list[Merge] = []  # one at a time: the worker goes on until nothing is left to plan
    monkeypatch.setattr(maintenance, "plan", lambda trace: planned.pop() if planned else None)
    monkeypatch.setattr(maintenance, "merge_ranges", slowly)
    for number, trace in sorted(traces_of(session).items()):
        if len(trace.layers) > 1:
            now, done = session.now, session.stats["merges"]
            planned.append(Merge(0, 2))
            merge_trace(session, number)
            assert (session.now, session.stats["merges"]) == (now + 1, done + 1)
            assert count(inner) == pairs(a.rows(), b.rows()) == count(again)
            assert count(itself) == pairs(b.rows(), b.rows())
    assert session.now > 4
    monkeypatch.undo()
    merge_all(session)
    change(session, b, {(1, 99): 1})
    assert count(inner) == pairs(a.rows(), b.rows()) == count(again)
    assert count(itself) == pairs(b.rows(), b.rows())


def test_pairs_are_made_once_when_epoch_merges_traces(session: Session) -> None:
    """With layers of one row, every fourth epoch merges all layers into one without epochs."""
    a = session.input("a", "k int, v int")
    both = session.stage("both", a.join(a.rename({"v": "w"}), on="k"))
    alone = set()
    for n in range(20):
        if n == 6:
            late = session.stage("late", a.join(a.rename({"v": "u"}), on="k", how="left"))
        change(session, a, {(0, n): 1, (0, n - 3): -1} if n > 8 else {(0, n): 2})
        assert count(both) == pairs(a.rows(), a.rows())
        if n >= 6:
            assert count(late) == count(both)
        layers = {len(trace.layers) for trace in traces_of(session).values() if trace.layers}
        alone |= {n} if layers == {1} else set()
    assert alone - {0}, "some epoch ended with one layer in every trace"


# -- values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"), [(24994, 219828), (5105, 203245)], ids=["lower half", "upper half"]
)
def test_rows_with_half_equal_hashes_stay_apart(session: Session, one: int, other: int) -> None:
    first, second = rows.hash_columns([np.array([one, other])], ("bigint",), 2).tolist()
    assert first != second
    assert first % 2**32 == second % 2**32 or first >> 32 == second >> 32
    a, b = session.input("a", "k bigint"), session.input("b", "k bigint, v bigint")
    stages = session.define(
        {
            "once": a.distinct(),
            "counts": a.group_by("k").count(),
            "inner": a.join(b, on="k"),
            "anti": a.join(b, on="k", how="anti"),
            "rest": a.except_all(b.select("k")),
            "kinds": b.agg(n="count(distinct k)", k="collect_set(k)"),
            "best": b.group_by("k").top(1, by="v"),
            "read": b.group_by("k").reduce(lambda key, found: [(len(found),)], "n int"),
            "reached": a.iterate(lambda r: r.join(b, on="k").select("v as k").concat(a).distinct()),
        }
    )
    assert {report.status for report in stages} == {"new"}
    a.insert([(one,), (one,), (other,)])
    change(session, b, {(one, 7): 1, (one, other): 1})
    a.remove([(one,)])
    change(session, b, {(other, 7): 1, (one, other): -1})
    a.remove([(other,)])
    change(session, b, {(one, 7): -1})
    found = {name: count(stage) for name, stage in session.stages.items() if name != "kinds"}
    assert found == {
        "once": {(one,): 1},
        "counts": {(one, 1): 1},
        "inner": {},
        "anti": {(one,): 1},
        "rest": {(one,): 1},
        "best": {(other, 7): 1},
        "read": {(other, 1): 1},
        "reached": {(one,): 1},
    }
    assert [tuple(row) for row in session["kinds"].rows()] == [(1, [other])]


@given(st.data(), random_programs.programs(["a", "b"], depth=5), st.integers(1, 3))
def test_programs_do_not_depend_on_hashes(
    data: st.DataObject, program: random_programs.Program, buckets: int
) -> None:
    """All hashes are one of a few numbers, so that most rows, keys and groups collide."""

    def build(a: Collection, b: Collection) -> Collection:
        a, b = (side.select(f"{x}0 as c0", f"{x}1 as c1") for side, x in ((a, "c"), (b, "d")))
        return random_programs.build(program, {"a": a, "b": b})

    with weak_hashes(buckets):
        run(
            data,
            {"a": ("int", "int"), "b": ("int", "int")},
            build,
            lambda a, b: random_programs.run(program, {"a": a, "b": b}),
            pools={"a": random_programs.ROWS, "b": random_programs.ROWS},
        )


# -- merges ----------------------------------------------------------------------------------------


def test_merge_of_cancelled_row_keeps_other_rows_of_key(session: Session) -> None:
    a = session.input("a", "k int, v int")
    found = session.stage("found", a.group_by("k").agg(n="count(*)", low="min(v)", all="sum(v)"))
    once = session.stage("once", a.distinct())
    paired = session.stage("paired", a.join(a.rename({"v": "w"}), on="k"))
    best = session.stage("best", a.group_by("k").top(1, by="v"))
    change(session, a, {(1, 10): 1, (1, 20): 1, (2, 5): 1})
    change(session, a, {(1, 10): -1})
    change(session, a, {(1, 30): 1, (2, 5): -1})
    merge_all(session)
    assert count(a) == {(1, 20): 1, (1, 30): 1}
    assert [len(a.rows(at=at)) for at in range(4)] == [0, 3, 2, 2]
    change(session, a, {(1, 30): -1, (2, 6): 1})
    merge_all(session)
    change(session, a, {(1, 40): 1})
    assert count(a) == count(once) == {(1, 20): 1, (1, 40): 1, (2, 6): 1}
    assert count(found) == {(1, 2, 20, 60): 1, (2, 1, 6, 6): 1}
    assert count(best) == {(1, 20): 1, (2, 6): 1}
    assert count(paired) == pairs(a.rows(), a.rows())


def test_rank_ignores_deleted_rows(session: Session) -> None:
    """Deletions and the deleted rows lie in separate layers, merged or not."""
    a = session.input("a", "k string, n int")
    ranked = session.stage("ranked", a.group_by("k").rank("n desc", 2))
    best = session.stage("best", a.group_by("k").top(1, by="n desc"))
    change(session, a, {("x", 3): 2, ("x", 2): 1, ("y", 9): 1})
    change(session, a, {("x", 3): -1, ("y", 9): -1})
    change(session, a, {("x", 3): -1})
    assert count(ranked) == {("x", 2, 1): 1}
    change(session, a, {("x", 1): 1})
    assert count(ranked) == {("x", 2, 1): 1, ("x", 1, 2): 1}
    merge_all(session)
    change(session, a, {("x", 2): -1, ("z", 4): 1})
    assert count(ranked) == {("x", 1, 1): 1, ("z", 4, 1): 1}
    assert count(best) == {("x", 1): 1, ("z", 4): 1}
