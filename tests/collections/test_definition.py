"""Definition trees: shared parts are one part, and depth and number do not limit them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from internals import catalog_of, graph_of, services_of

import nosync_nb
from nosync_nb import Collection, SchemaError, Session, StageError, errors
from nosync_nb.collections.definition import OPERATORS_MAX, Definition, reference_to
from nosync_nb.collections.functions.fingerprint import canonical_values
from nosync_nb.collections.session_protocol import definition_of
from nosync_nb.dataflow import compiler
from nosync_nb.expressions import compile_expression
from nosync_nb.rows import Schema
from nosync_nb.store.catalog import signature
from nosync_nb.store.records import json_text, payloads

NUMBERS = Schema.parse("x bigint, y bigint")


@pytest.fixture
def session(tmp_path: Path) -> Any:
    with nosync_nb.open(tmp_path / "log") as session:
        session.input("numbers", "x bigint, y bigint").insert([(1, 2), (3, 4)])
        session.commit()
        yield session


def diamonds(collection: Any, times: int) -> Any:
    for i in range(times):
        collection = collection.filter(f"x > {i}").concat(collection.filter(f"not x > {i}"))
    return collection


def chain(collection: Any, operators: int) -> Any:
    """Operators that cannot be fused."""
    for i in range(operators // 2):
        collection = collection.filter(f"x > {-i}").distinct()
    return collection


def call_at_depth(frames: int, call: Callable[[], Any]) -> Any:
    """Calls a function from a number of frames below."""
    return call() if frames <= 0 else call_at_depth(frames - 1, call)


def free_frames() -> int:
    """The number of free frames."""
    frame, used = sys._getframe(), 0
    while frame is not None:
        frame, used = frame.f_back, used + 1  # type: ignore[assignment]
    return sys.getrecursionlimit() - used


# -- sharing -----------------------------------------------------------------------------------


def test_shared_part_is_stored_and_planned_once(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    tall = diamonds(session.inputs["numbers"], 14)
    assert definition_of("test", tall).size == 14 * 3 + 1
    assert len(definition_of("test", tall).to_json([])) == 14 * 3 + 1
    counted = _recorded_calls(monkeypatch, canonical_values, "definition_digest")
    assert definition_of("test", tall).fingerprint({"numbers": "0"})
    assert len(counted) == 14 * 3
    session.stage("tall", tall)
    assert len(graph_of(session).nodes) == 14 * 3 + 1
    assert sorted(tuple(r) for r in session["tall"].rows()) == [(1, 2), (3, 4)]
    session["numbers"].insert([(5, 6)])
    session.commit()
    assert session["tall"].count() == 3


def test_shared_parts_are_shared_after_reopening(tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log") as session:
        session.stage("tall", diamonds(session.input("numbers", NUMBERS), 14))
    with nosync_nb.open(tmp_path / "log") as session:
        tree = catalog_of(session)["tall"].definition
        assert tree is not None
        assert tree.size == 14 * 3 + 1
        session["numbers"].insert([(5, 6)])
        session.commit()
        assert session["tall"].count() == 1


def test_shared_part_is_explained_once(session: Session) -> None:
    tall = diamonds(session.inputs["numbers"], 40)
    lines = tall.explain().splitlines()
    assert len(lines) < 5 * 40
    assert any("as above" in line for line in lines)


def test_too_many_operators_are_refused_with_hint() -> None:
    tree = reference_to("numbers", NUMBERS)
    for _ in range(OPERATORS_MAX - 1):
        tree = Definition("distinct", NUMBERS, (tree,))
    with pytest.raises(StageError, match="10001 operators is more than 10000") as caught:
        Definition("distinct", NUMBERS, (tree,))
    assert "session.stage" in str(caught.value.hint)


# -- depth -------------------------------------------------------------------------------------


def test_deep_stage_works_from_deep_stack(tmp_path: Path) -> None:
    """From 200 frames further down, and with the fewest frames that any stage needs."""
    with nosync_nb.open(tmp_path / "log") as session:
        numbers = session.input("numbers", NUMBERS)
        session.stage("deep", chain(numbers, 1000))
        session.stage("looped", numbers.iterate(lambda x: chain(x, 400)))
        numbers.insert([(1, 2), (1, 2)])
        session.commit()

    def reopened(more: int) -> tuple[int, int]:
        with nosync_nb.open(tmp_path / "log") as session:
            assert len(session["deep"].explain().splitlines()) > 1000
            session.drop("looped")
            session.stage("looped", session["numbers"].iterate(lambda x: chain(x, 400)))
            session["numbers"].insert([(more, 4)])
            session.commit()
            return session["deep"].count(), session["looped"].count()

    assert call_at_depth(200, lambda: reopened(3)) == (2, 2)
    assert call_at_depth(free_frames() - 250, lambda: reopened(4)) == (3, 3)


@pytest.mark.parametrize("text", ["({})", "abs({})", "{} + 1"])
def test_depth_limit_of_expression_is_independent_of_stack(text: str) -> None:
    """Excessive nesting is refused with a hint, from a shallow stack as well."""

    def refused(times: int, frames: int) -> str:
        sql = "y"
        for _ in range(times):
            sql = text.format(sql)
        try:
            call_at_depth(frames, lambda: compile_expression(f"{sql} + {frames}", NUMBERS))
        except errors.ExpressionError as error:
            return f"{error.hint}"
        return ""

    for times in (5, 15, 2000):
        assert refused(times, 0) == refused(times, free_frames() - 150)
    assert not refused(5, 0)
    assert "with_columns" in refused(2000, 0)


def test_long_chain_of_stages_works(tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log") as session:
        stages: dict[str, Collection] = {}
        last: Collection = session.input("numbers", NUMBERS)
        for i in range(600):
            last = stages[f"s{i}"] = last.filter(f"x > {-i}")
        session.define(stages)
        session["numbers"].insert([(1, 2)])
        session.commit()
        assert session["s599"].count() == 1


def test_deep_stage_follows_columns_of_its_source(session: Session) -> None:
    first = session.stage("first", session["numbers"].filter("x > 0"))
    session.stage("deep", chain(first, 1000))
    session.stage("first", session["numbers"].filter("x > 0").select("y", "x"))
    assert session["deep"].count() == 2


# -- number ------------------------------------------------------------------------------------


def _recorded_calls(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[Any]:
    """Counts the calls of a function of a module."""
    called: list[Any] = []
    function = getattr(module, name)

    def counted(*given: Any, **named: Any) -> Any:
        called.append(given)
        return function(*given, **named)

    monkeypatch.setattr(module, name, counted)
    return called


@pytest.mark.parametrize("shape", ["wide", "chain", "of a reference"])
def test_cost_of_definition_is_proportional_to_new_parts(
    session: Session, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    """Another 50 stages take as much work as the 50 before them."""
    places = [
        (canonical_values, "definition_digest"),
        (compiler, "build_operator"),
        (compiler, "linear_chain"),
        (payloads, "_stage_json"),
        (payloads, "_node_json"),
    ]
    every = [_recorded_calls(monkeypatch, module, name) for module, name in places]
    counts = []
    last: Any = session["numbers"]
    for i in range(100):
        made = last.filter(f"x > {i - 100}").distinct().filter("y > 0")
        if shape == "chain":
            last = session.stage(f"s{i}", made)
        else:
            session.stage(f"s{i}", made if shape == "wide" or i % 2 else last)
        if i % 50 == 49:
            counts.append([len(called) for called in every])
            for called in every:
                called.clear()
    for before, after in zip(*counts, strict=True):
        assert before > 0
        assert after <= before + 2  # the first one reads an input


def test_rerun_cell_compiles_its_own_stage_only(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(20):
        session.stage(f"s{i}", session["numbers"].filter(f"x > {i}").distinct())
    called = _recorded_calls(monkeypatch, compiler, "linear_chain")
    session.stage("s3", session["numbers"].filter("x > 3").distinct())
    assert called == []  # nothing is new
    session.stage("s3", session["numbers"].filter("x > 4").distinct())
    assert len(called) <= 2


def test_incremental_catalog_text_equals_full_text(session: Session) -> None:
    """The signature covers the text, written or rebuilt from a read catalog."""
    for i in range(3):
        session.stage(f"s{i}", session["numbers"].map(lambda r: (r.x,), "x bigint"))
    session.stage("s1", session["numbers"].filter("x > 1"))
    catalog = services_of(session).publisher.catalog
    assert isinstance(catalog, json_text.CatalogText)
    assert catalog.text == json_text.compact_json(dict(catalog))
    read = json.loads(catalog.text)
    assert (
        signature.digest(read) == signature.digest(catalog) == services_of(session).publisher.digest
    )
    meta = {"catalog": catalog, "signed": ["a", "b"], "replays": 2}
    assert json.loads(json_text.header_text(meta)) == {**meta, "catalog": read}


def test_dropped_stage_leaves_no_activity(session: Session) -> None:
    session.stage("big", session["numbers"].filter("x > 1"))
    session.rename("big", "large")
    assert "in process" in session["large"].explain()
    session.drop("large")
    assert services_of(session).metrics.stages.keys() <= {"numbers"}
    session.input("big", NUMBERS)
    session.input("large", NUMBERS)
    assert "in process" not in session["big"].explain() + session["large"].explain()


# -- columns -----------------------------------------------------------------------------------


class Exports:
    """An object with a schema and without rows."""

    def __init__(self, schema: Any) -> None:
        self.schema = schema

    def __arrow_c_schema__(self) -> Any:
        return self.schema.__arrow_c_schema__()


@pytest.mark.parametrize("how", [lambda schema: schema, Exports])
def test_input_accepts_arrow_schema(session: Session, how: Callable[[Any], Any]) -> None:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    made = session.input("made", how(schema), key="id")
    assert made.schema == Schema.parse("id bigint, name string")
    assert session.input("made", how(schema)).key == ("id",)
    with pytest.raises(SchemaError, match="has columns"):
        session.input("made", how(pa.schema([("id", pa.int32())])))


@pytest.mark.parametrize("given", [pa.int64(), Exports(pa.int64())])
def test_type_of_one_column_is_no_schema(session: Session, given: Any) -> None:
    with pytest.raises(SchemaError, match="is not the schema of a table") as caught:
        session.input("made", given)
    assert "pyarrow.Schema" in str(caught.value.hint)
