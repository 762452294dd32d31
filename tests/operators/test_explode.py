"""`explode`: one row for each element, here and in Spark, and removals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from checks.checking import run
from hypothesis import given
from hypothesis import strategies as st
from models import model
from models.model import Row
from strategies import all_types

from nosync_nb import Session, rows
from nosync_nb.collections.session_protocol import definition_of
from nosync_nb.dataflow.planner import plan_definition
from nosync_nb.errors import ExpressionError, SchemaError
from nosync_nb.operators.base import Step
from nosync_nb.operators.explode import SPEC, Explode
from nosync_nb.operators.spec import LostColumn, LostColumnError, RemainingColumns
from nosync_nb.trace.batch import Updates


@pytest.mark.usefixtures("no_disk")
@given(st.data(), all_types)
def test_explode_equals_model(data: st.DataObject, of: str) -> None:
    run(
        data,
        {"a": (of, "array<int>")},
        lambda a: a.select("explode(array(c0, c0)) AS x", "size(c1) AS n").concat(
            a.select("c0", "posexplode_outer(c1)").filter("col = 1").select("c0", "pos")
        ),
        lambda a: model.concat(
            model.flat_mapped(
                a, lambda r: [(v, None if r[1] is None else len(r[1])) for v in (r[0], r[0])]
            ),
            model.flat_mapped(a, lambda r: [(r[0], i) for i, v in enumerate(r[1] or ()) if v == 1]),
        ),
    )


@pytest.mark.usefixtures("no_disk")
@given(st.data())
def test_explode_outer_equals_model(data: st.DataObject) -> None:
    def made(row: Row) -> list[Row]:
        return [(v, row[1]) for v in row[0]] if row[0] else [(None, row[1])]

    run(
        data,
        {"a": ("array<double>", "int")},
        lambda a: a.with_columns(c0="explode_outer(c0)"),
        lambda a: model.flat_mapped(a, made),
    )


ITEMS: list[Any] = [[1, None, 3], None, [], [4]]


@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize("copies", [1, rows.SMALL])
def test_elements_below_nulls_and_outside_slices_are_ignored(outer: bool, copies: int) -> None:
    whole = pa.ListArray.from_arrays(
        pa.array([0, 1, 4, 6, 6, 7], pa.int32()),
        pa.array([9, 1, None, 3, 8, 8, 4], pa.int32()),
        mask=pa.array([False, False, True, False, False]),
    ).slice(1)
    array = pa.concat_arrays([whole] * copies) if copies > 1 else whole
    piece = Explode(1, "array<int>", positions=True, outer=outer, apart=False)
    n = 4 * copies
    given_ = Updates([np.arange(n, dtype=np.int64), array], np.full(n, -2, np.int64))
    made = piece.apply(given_, Step([], [], [], ()))
    types = piece.types_after(("bigint", "array<int>"))
    assert types == ("bigint", "int", "int")
    found = [rows.to_pylist(c, t) for c, t in zip(made.columns, types, strict=True)]
    wanted = [
        (i, place, value)
        for i in range(n)
        for place, value in (enumerate(ITEMS[i % 4] or ()) if ITEMS[i % 4] else [(None, None)])
        if outer or place is not None
    ]
    assert list(zip(*found, strict=True)) == wanted
    assert set(made.diff.tolist()) == {-2}


TABLE = "id int, a array<string>, m map<string,double>, s array<struct<x:int,y:string>>, d double"
VALUES: list[tuple[Any, ...]] = [
    (1, ["a", None, "é😀", ""], {"a": math.nan, "": None}, [{"x": 1, "y": "p"}, None], 0.5),
    (2, [], {}, [], None),
    (3, None, None, None, math.nan),
    (4, ["a"] * 3, {"ß": -0.0, "b": math.inf}, [{"x": None, "y": None}] * 2, -math.inf),
]
CALLS = [
    ("id", "explode(a) AS x"),
    ("explode_outer(a)", "id"),
    ("id", "posexplode(a)", "d"),
    ("posexplode_outer(a) AS (i, x)", "id"),
    ("*", "explode(m) AS (k, v)"),
    ("id", "explode_outer(m)"),
    ("posexplode(m) AS (i, k, v)", "id", "a"),
    ("posexplode_outer(m)",),
    ("inline(s)", "id"),
    ("id", "inline_outer(s) AS (p, q)", "a"),
    ("id", "explode(s) AS t"),
    ("EXPLODE ( split ( 'a),b' , ',' ) ) as w", "id"),
    ("id", "explode(array(d, id)) AS x"),
    ("id", "explode(map(id, a, -id, array('n'))) AS (k, v)"),
    ("id", "explode(sequence(0, coalesce(size(a), 0))) AS n"),
]


def shown(table: pa.Table) -> tuple[Any, ...]:
    """Names, types and rows, whatever their order."""
    types = [rows.spark_type(field.type) for field in table.schema]
    return table.schema.names, types, sorted(map(repr, zip(*table.to_pydict().values())))  # noqa: B905


@pytest.mark.spark
def test_explode_equals_spark(session: Session, spark: Any) -> None:
    given_ = session.input("given", TABLE)
    given_.insert(VALUES)
    session.commit()
    frame = spark.createDataFrame(given_.to_arrow())
    for sqls in CALLS:
        ours, theirs = given_.select(*sqls).to_arrow(), frame.selectExpr(*sqls).toArrow()
        assert (sqls, *shown(ours)) == (sqls, *shown(theirs))


def test_explode_needs_no_spark_and_is_retracted(session: Session) -> None:
    given_ = session.input("given", TABLE)
    stages = {f"s{i}": given_.select(*sqls) for i, sqls in enumerate(CALLS)}
    for name, stage in stages.items():
        assert "waits for Spark" not in stage.explain()
        session.stage(name, stage)
    given_.insert(VALUES)
    session.commit()
    assert all(session[name].count() for name in stages)
    given_.remove(VALUES)
    session.commit()
    assert [session[name].count() for name in stages] == [0] * len(CALLS)


def test_random_values_are_retracted_with_their_row(session: Session) -> None:
    given_ = session.input("given", "id int")
    drawn = session.stage("drawn", given_.select("id", "explode(array(rand(), rand())) AS r"))
    given_.insert([(1,), (2,)])
    session.commit()
    first = {row.r for row in drawn.rows() if row.id == 2}
    given_.remove([(1,)])
    session.commit()
    assert len(first) == 2
    assert {row.r for row in drawn.rows()} == first


def test_flat_map_of_sql_retains_columns(session: Session) -> None:
    given_ = session.input("given", TABLE)
    made = given_.flat_map("posexplode(a) AS (i, word)")
    assert made.schema.names == ("id", "a", "m", "s", "d", "i", "word")
    with pytest.raises(ExpressionError, match="does not generate rows"):
        given_.flat_map("id + 1 AS x")


@pytest.mark.parametrize(
    ("sqls", "said"),
    [
        (("explode(d) AS x",), "explode takes an array or a map, not a double"),
        (("inline(a)",), "inline takes an array of structs, not a array<string>"),
        (("explode(m) AS x",), r"explode generates 2 columns \(key, value\), not 1"),
        (("explode(a) AS (x, y)",), r"explode generates 1 columns \(col\), not 2"),
        (("explode(a) + 1 AS x",), "explode generates several rows"),
        (("explode(explode(a)) AS x",), "explode generates several rows"),
        (("explode(a) AS x", "explode(m)"), "both generate rows"),
        (("explode(a, 1) AS x",), "takes one argument, not 2"),
        (("explode(nosuch) AS x",), "no column 'nosuch'"),
        (("stack(2, 1, 2) AS x",), "stack generates several rows"),
    ],
)
def test_invalid_explodes_are_refused(sqls: Any, said: str, session: Session) -> None:
    given_ = session.input("given", TABLE)
    with pytest.raises(ExpressionError, match=said):
        given_.select(*sqls)


def test_name_clashes_and_misplaced_explodes_are_refused(session: Session) -> None:
    given_ = session.input("given", TABLE)
    with pytest.raises(SchemaError, match="two columns would be named 'id'"):
        given_.select("id", "explode(a) AS id")
    with pytest.raises(ExpressionError, match="generates 2 columns"):
        given_.with_columns(x="explode(m)")
    for refused in (
        lambda: given_.filter("explode(a) = 'x'"),
        lambda: given_.join(session.input("other", "e int"), on={"explode(a)": "e"}),
    ):
        with pytest.raises(ExpressionError, match="explode generates several rows"):
            refused()


def test_raising_element_changes_nothing(session: Session) -> None:
    given_ = session.input("given", "id int, a array<int>")
    made = session.stage("made", given_.select("id", "explode(transform(a, x -> 6 div x)) AS x"))
    given_.insert([(1, [1, 2])])
    session.commit()
    given_.insert([(2, [3]), (3, [0])])
    with pytest.raises(ExpressionError, match="division by zero in the row"):
        session.commit()
    session.discard()
    assert sorted(map(tuple, made.rows())) == [(1, 3), (1, 6)]


def test_only_columns_that_are_read_pass_explode(session: Session) -> None:
    given_ = session.input("given", TABLE)
    asked = given_.flat_map("posexplode(a) AS (i, x)").group_by("x").agg(n="count(*)")
    parts = [*plan_definition(definition_of("test", asked), None).walk()]
    (exploded,) = [part for part in parts if part.op == "explode"]
    assert exploded.inputs[0].schema.names == ("i",)
    assert exploded.inputs[0].schema.types == ("array<string>",)
    given_.insert(VALUES)
    session.commit()
    assert sorted(asked.rows(), key=repr) == sorted(
        [("", 1), ("a", 4), ("é😀", 1), (None, 1)], key=repr
    )


def test_explode_adapts_to_lost_columns(session: Session) -> None:
    given_ = session.input("given", TABLE)
    part = definition_of("test", given_.select("id", "posexplode(a) AS (i, x)", "d"))
    gone = LostColumn("gone", retyped=False)
    params, lost = SPEC.fit(part, [RemainingColumns([1, 2], {0: gone})], None)
    assert params["place"] == 0
    assert lost == {0: gone}
    assert SPEC.fit(part, [RemainingColumns([0, 1], {2: gone})], None).lost == {3: gone}
    with pytest.raises(LostColumnError):
        SPEC.fit(part, [RemainingColumns([0, 2], {1: gone})], None)
