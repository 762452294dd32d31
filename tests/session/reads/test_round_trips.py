"""Tables exported to other libraries: loaded again unchanged, or refused with a hint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from checks.round_trips import CASES, LARGE
from hypothesis import given
from hypothesis import strategies as st
from row_strategies import typed_values

from nosync_nb import SchemaError, Session
from nosync_nb.rows import Schema, arrow_type, equal, from_arrow, to_arrow, to_columns
from nosync_nb.rows.pandas_frames import to_frame


def by_duckdb(collection: Any) -> Any:
    return duckdb.sql("from collection").to_arrow_table()


WAYS: dict[str, Callable[[Any], Any]] = {
    "arrow": lambda collection: collection.to_arrow(),
    "arrow stream": pa.table,
    "pandas numpy": lambda collection: collection.to_pandas(),
    "pandas arrow": lambda collection: collection.to_pandas(types="arrow"),
    "polars": pl.DataFrame,
    "duckdb": by_duckdb,
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_exported_table_is_loaded_again_unchanged_or_refused(session: Session, case: Any) -> None:
    source = session.input("source", f"x {case.type}, n bigint")
    array = case.array
    source.insert(pa.table({"x": array, "n": np.arange(len(array))}))
    session.commit()
    for name, export in WAYS.items():
        if name in case.refused:
            with pytest.raises(SchemaError) as caught:
                source.set(export(source))
            assert caught.value.hint, name
        else:
            assert source.set(export(source)) == 0, name


@given(typed_values(), st.sampled_from(["numpy", "arrow", "polars", "duckdb"]))
def test_any_table_is_loaded_again_unchanged_or_refused(
    drawn: tuple[str, list[Any]], way: str
) -> None:
    type_, values = drawn
    schema = Schema([("x", type_)])
    wanted = from_arrow(pa.array(values, arrow_type(type_)), type_)
    stage = pa.Table.from_arrays([to_arrow(wanted, type_)], schema=schema.arrow)
    export: Callable[[Any], Any] = {
        "numpy": lambda table: to_frame(table, "numpy"),
        "arrow": lambda table: to_frame(table, "arrow"),
        "polars": pl.DataFrame,
        "duckdb": by_duckdb,
    }[way]
    hint = None
    try:
        (column,), n = to_columns(export(stage), schema, "input 's'")
    except SchemaError as error:
        hint = error.hint or "no hint"
    if hint is not None:
        assert hint != "no hint"
        assert way in ("numpy", "duckdb")
        return
    assert n == len(values)
    assert equal(column, wanted, type_).all()


def test_floats_beyond_2_to_the_53_are_refused_in_integer_columns(session: Session) -> None:
    bigints = session.input("bigints", "x bigint")
    float_: Any = float(1 << 53)
    for rows in (
        [(float_,)],
        [(-float_,)],
        {"x": [float_]},
        {"x": np.array([float_])},
        {"x": np.array([1 << 53], np.float32)},
        {"x": pd.Series([float_, None])},
        pd.DataFrame({"x": [float_, None]}),
        pd.DataFrame({"x": pd.Series([float_], dtype=object)}),
        pd.DataFrame({"x": pd.Series([float_], dtype="Float64")}),
        pa.table({"x": [float_]}),
        pl.DataFrame({"x": [float_]}),
    ):
        with pytest.raises(SchemaError, match=r"column 'x', row 0: -?9007.* 2\^53") as caught:
            bigints.insert(rows)
        assert "to_pandas(types='arrow')" in str(caught.value.hint)
    assert bigints.insert(pd.DataFrame({"x": [float_ - 1, None, 1 - float_]})) == 3
    assert bigints.insert(pd.DataFrame({"x": [1 << 53, LARGE]})) == 2
    assert bigints.insert(pd.DataFrame({"x": pd.Series([LARGE, None], dtype="Int64")})) == 2


def test_floats_are_refused_in_decimals_of_more_digits(session: Session) -> None:
    prices = session.input("prices", "x decimal(38,18)")
    for rows in ([(1.5,)], pd.DataFrame({"x": [1.5]}), pa.table({"x": [1.5]})):
        with pytest.raises(SchemaError, match=r"row 0: 1\.5 is a float, which cannot hold"):
            prices.insert(rows)
    assert prices.insert([(2.0**-10,)]) == 1


def test_export_to_arrow_backed_columns_keeps_types_and_values(session: Session) -> None:
    source = session.input("source", "i bigint, d double, s string")
    source.insert([(LARGE, float("nan"), None), (None, None, "a")])
    session.commit()
    frame = source.to_pandas(types="arrow")
    assert [str(each) for each in frame.dtypes] == [
        "int64[pyarrow]", "double[pyarrow]", "string[pyarrow]",
    ]  # fmt: skip
    assert frame["i"].dropna().tolist() == [LARGE]
    assert source.set(source.at(session.now).to_pandas(types="arrow")) == 0
    assert source.to_pandas(types="numpy").dtypes.tolist() == source.to_pandas().dtypes.tolist()
    assert source.to_pandas()["i"].dtype == np.float64
    with pytest.raises(SchemaError, match="types='polars' is unknown") as caught:
        source.to_pandas(types="polars")
    assert 'types="arrow"' in str(caught.value.hint)


def test_frame_with_ambiguous_nan_is_loaded_after_its_attrs_are_cleared(session: Session) -> None:
    source = session.input("source", "x double")
    source.insert([(float("nan"),), (1.0,)])
    session.commit()
    frame = source.to_pandas()
    with pytest.raises(SchemaError, match=r"column 'x': .* null and NaN") as caught:
        source.set({"x": frame["x"]})
    assert "frame.attrs.clear()" in str(caught.value.hint)
    assert source.set(frame.fillna(0.0)) == 2
    session.discard()
    frame.attrs.clear()
    assert source.set(frame) == 2
    session.commit()
    assert source.rows() == [(None,), (1.0,)]


def test_masked_values_of_numpy_are_null(session: Session) -> None:
    lists = session.input("lists", "x array<bigint>")
    lists.insert(duckdb.sql("select unnest([[1, null], null]) as x").df())
    assert session.commit() == 1
    assert lists.rows() == [(None,), ([1, None],)]


@pytest.mark.parametrize("type_", ["array<date>", "struct<a:date>", "array<timestamp>"])
def test_rows_with_dates_beyond_python_inside_are_refused(session: Session, type_: str) -> None:
    far = session.input("far", f"x {type_}")
    part: Any = pa.array([(1 << 31) - 1], pa.int32()).view(pa.date32())
    if type_ == "array<timestamp>":
        part = pa.array([(1 << 63) - 1], pa.int64()).view(pa.timestamp("us", "UTC"))
    array = (
        pa.StructArray.from_arrays([part], ["a"])
        if type_.startswith("struct")
        else pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), part)
    )
    far.insert(pa.table({"x": array}))
    session.commit()
    with pytest.raises(SchemaError, match="outside the years 1 to 9999"):
        far.rows()
