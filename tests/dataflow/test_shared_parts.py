"""Shared parts of stages: one that is computed again leaves the others unchanged."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from internals import graph_of

import nosync_nb
from nosync_nb import Collection, NosyncError, Session
from nosync_nb.dataflow.graph import Graph

Part = Callable[[Collection], Collection]


def bag(collection: Collection) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, collection.rows()))


def random_tag(row: Any) -> tuple[int, int]:
    """Returns another result at every call."""
    return (row.n, random.getrandbits(40))


def tags(numbers: Collection) -> Collection:
    return numbers.map(random_tag, "n int, tag bigint")


def priced_part(path: str) -> Part:
    """A part with state, whose function reads a file."""

    def price(row: Any) -> tuple[int, int]:
        return (row.n, row.n * int(Path(path).read_text()))

    return lambda numbers: numbers.map(price, "n int, price int").distinct()


def shared(session: Session, part: Part) -> dict[str, Collection]:
    """Two definitions over equal parts."""
    numbers = session["numbers"]
    joined = [part(numbers).join(session["names"], on="n") for _ in range(2)]
    return {"a": joined[0].select("price"), "b": joined[1].select("name", "price")}


@pytest.fixture
def numbers(session: Session) -> Collection:
    rows = session.input("numbers", "n int")
    rows.insert([(1,), (2,)])
    session.input("names", "n int, name string").insert([(1, "one"), (2, "two")])
    session.commit()
    return rows


def parts(session: Session, kind: str) -> int:
    """The number of unnamed nodes with an operator of a kind."""
    graph = graph_of(session)
    return sum(n.name is None and type(n.operator).__name__ == kind for n in graph)


@pytest.mark.parametrize("whole", [False, True], ids=["goes on", "whole"])
@pytest.mark.parametrize("name", ["a", "b"])
def test_recomputed_stage_leaves_sharing_stage_unchanged(
    session: Session,
    numbers: Collection,
    tmp_path: Path,
    name: str,
    whole: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rate = tmp_path / "rate"
    rate.write_text("10")
    part = priced_part(str(rate))
    session.define(shared(session, part), nondeterministic=True)
    assert parts(session, "Threshold") == 1
    rate.write_text("30")
    if whole:
        monkeypatch.setattr(Graph, "goes_on", False)
        monkeypatch.setattr(graph_of(session), "wiring", None)
    again = {name: shared(session, part)[name]}
    report = session.define(again, nondeterministic=True, again=True)
    assert [(each.name, each.status) for each in report] == [(name, "changed")]
    prices = {"a": 30, "b": 10} if name == "a" else {"a": 10, "b": 30}
    for _ in range(2):
        assert bag(session["a"]) == [(prices["a"],), (2 * prices["a"],)]
        assert bag(session["b"]) == [("one", prices["b"]), ("two", 2 * prices["b"])]
        [equal] = session.define({name: shared(session, part)[name]}, nondeterministic=True)
        assert equal.status == "unchanged"
    numbers.remove([(1,)])
    session.inputs["names"].insert([(2, "deux")])
    session.commit()
    assert bag(session["a"]) == [(2 * prices["a"],)] * 2
    assert bag(session["b"]) == [("deux", 2 * prices["b"]), ("two", 2 * prices["b"])]


def test_stages_recomputed_together_still_share_part(
    session: Session, numbers: Collection, tmp_path: Path
) -> None:
    rate = tmp_path / "rate"
    rate.write_text("10")
    part = priced_part(str(rate))
    session.define(shared(session, part))
    rate.write_text("30")
    session.define(shared(session, part), again=True)
    assert parts(session, "Threshold") == 1
    assert bag(session["a"]) == [(30,), (60,)]
    assert bag(session["b"]) == [("one", 30), ("two", 60)]


def test_readers_follow_only_recomputed_stage(
    session: Session, numbers: Collection, tmp_path: Path
) -> None:
    """After one of two equal stages is recomputed, their readers are no longer equal."""
    rate = tmp_path / "rate"
    rate.write_text("10")
    part = priced_part(str(rate))
    for name in ("a", "b"):
        session.stage(name, part(session["numbers"]))
        few = session[name].distinct()
        session.stage(f"of_{name}", shared(session, lambda _, few=few: few)[name])
    rate.write_text("30")
    session.define({"a": part(session["numbers"])}, again=True)
    for _ in range(2):
        assert bag(session["of_a"]) == [(30,), (60,)]
        assert bag(session["of_b"]) == [("one", 10), ("two", 20)]
        session["names"].remove([(2, "two")])
        session["names"].insert([(2, "two")])
        session.commit()


def test_stage_over_same_part_draws_own_values(session: Session, numbers: Collection) -> None:
    """The first stage stores no emitted values, so the second one cannot reuse them."""
    for name, order in {"a": 1, "b": -1}.items():
        aggregates = {"low": "min(tag)", "high": "max(tag)"}
        made = tags(session["numbers"]).group_by("n").agg(**dict([*aggregates.items()][::order]))
        session.stage(name, made, nondeterministic=True)
    before = {name: bag(session[name]) for name in "ab"}
    for change in (numbers.remove, numbers.insert):
        change([(1,)])
        session.commit()
    for name, rows in before.items():
        [one, two] = bag(session[name])
        assert one[1] == one[2], "of one row both are the same"
        assert two == rows[1]


@pytest.mark.parametrize("together", [False, True])
def test_equal_nondeterministic_stages_have_own_readers(
    session: Session, numbers: Collection, tmp_path: Path, together: bool
) -> None:
    described = {name: tags(session["numbers"]) for name in "ab"}
    for stages in [described] if together else [{n: each} for n, each in described.items()]:
        session.define(stages, nondeterministic=True)
    for name in "ab":
        few = session[name].select("tag").distinct()
        session.stage(f"of_{name}", few.group_by("tag").agg(n="count(*)"))
    numbers.insert([(3,)])
    session.commit()
    for name in "ab":
        assert bag(session[f"of_{name}"]) == sorted((tag, 1) for _, tag in bag(session[name]))


def test_stages_of_one_definition_share_random_values(
    session: Session, numbers: Collection
) -> None:
    made = tags(session["numbers"])
    high, low = (made.agg(tag=f"{function}(tag)") for function in ("max", "min"))
    session.define({"high": high, "low": low}, nondeterministic=True)
    assert parts(session, "MemoizedMap") == 1
    numbers.remove([(1,)])
    session.commit()
    assert bag(session["high"]) == bag(session["low"])


def test_recomputed_stage_is_restored_after_restart(tmp_path: Path) -> None:
    rate = tmp_path / "rate"
    rate.write_text("10")
    part = priced_part(str(rate))
    with nosync_nb.open(tmp_path / "log") as session:
        rows = session.input("numbers", "n int")
        rows.insert([(1,), (2,)])
        session.input("names", "n int, name string").insert([(1, "one"), (2, "two")])
        session.commit()
        session.define(shared(session, part), nondeterministic=True)
        rate.write_text("30")
        again = {"a": shared(session, part)["a"]}
        session.define(again, nondeterministic=True, again=True)
        session.rename("a", "c")
    rate.write_text("50")
    with nosync_nb.open(tmp_path / "log") as session:
        assert session.recovery.recomputed == 0
        session.inputs["numbers"].remove([(1,)])
        session.commit()
        assert bag(session["c"]) == [(60,)]
        assert bag(session["b"]) == [("two", 20)]
        assert parts(session, "Threshold") == 2


# -- any order of things -----------------------------------------------------------------------


def random_stage(session: Session, rng: random.Random, stages: list[str]) -> Collection:
    """A stage over random values, or over such a stage."""
    read = tags(session["numbers"])
    if stages and rng.random() < 0.4:
        read = session[rng.choice(stages)]
    if rng.random() < 0.5:
        read = read.distinct()
    match rng.randrange(4):
        case 0:
            return read.select("n", f"tag + {rng.randrange(2)} AS tag")
        case 1:
            return read.group_by("n").agg(tag="sum(tag)")
        case 2:
            return read.join(session["names"], on="n").select("n", "tag")
        case _:
            return read.group_by("n").reduce(lambda k, rows: [(rows[0].tag,)], "tag bigint")


def random_step(
    session: Session, rng: random.Random, cells: dict[str, Collection], step: int
) -> None:
    names = [name for name in cells if name in session.stages]
    name = rng.choice(names) if names and rng.random() < 0.6 else f"s{step}"
    match rng.randrange(8):
        case 0 | 1 | 2:
            cells[name] = random_stage(session, rng, [each for each in names if each != name])
            session.define({name: cells[name]}, nondeterministic=True)
        case 3 | 4 if name in names:
            session.define({name: cells[name]}, nondeterministic=True, again=True)
        case 5 if name in names and rng.random() < 0.3:
            session.drop(name, cascade=True)
        case 6 if name in names:
            session.rename(name, f"r{step}")
            cells[f"r{step}"] = cells.pop(name)
        case _:
            session.inputs["numbers"].insert([(rng.randrange(4),)])
            session.commit()


@pytest.mark.parametrize("seed", range(12))
def test_recomputed_values_are_retracted_as_emitted(
    session: Session, numbers: Collection, seed: int
) -> None:
    """Without rows nothing may remain: wrong retractions would leave rows or negative counts."""
    rng = random.Random(seed)
    cells: dict[str, Collection] = {}
    for step in range(40):
        try:
            random_step(session, rng, cells, step)
        except NosyncError:  # a circle
            continue
    assert len(session.stages) > 2
    numbers.remove(bag(numbers))
    session.commit()
    assert [row for name in session.stages for row in bag(session[name])] == []
