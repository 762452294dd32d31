"""Schemas: DDL in and out, names, Arrow types."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from row_strategies import types

from nosync_nb.errors import SchemaError
from nosync_nb.rows import Schema, arrow_type, canonical_type, spark_type, widens


@given(st.dictionaries(st.text(min_size=1, max_size=8), types, min_size=1, max_size=4))
def test_ddl_arrow_and_pickle_round_trip(fields: dict[str, str]) -> None:
    schema = Schema(fields.items())
    assert schema == Schema.parse(schema.ddl)
    assert schema not in (Schema.parse("of_nobody int"), schema.ddl)
    assert schema == Schema.from_arrow(schema.arrow)
    again = pickle.loads(pickle.dumps(schema))
    assert (schema, hash(schema)) == (again, hash(again))


def test_handwritten_ddl_becomes_simple_strings() -> None:
    schema = Schema.parse(
        "`a b` LONG NOT NULL COMMENT 'it''s', S: Struct<X:Integer, y string>,"
        " m map<string, array<real>>, d dec(5), t timestamp_ltz"
    )
    assert schema.names == ("a b", "S", "m", "d", "t")
    assert schema.types == (
        "bigint",
        "struct<X:int,y:string>",
        "map<string,array<float>>",
        "decimal(5,0)",
        "timestamp",
    )
    assert Schema.parse("struct<a:int>") == Schema.parse("a int")


@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        ("", "no columns"),
        ("a", "cannot read 'the end'"),
        ("a int b int", "cannot read 'b'"),
        ("a text", "unknown type 'text'"),
        ("a decimal(39,0)", r"decimal\(39,0\)"),
        ("a decimal(2,3)", r"decimal\(2,3\)"),
        ("a int, a string", "'a' occurs twice"),
        ("a array<int", "cannot read 'the end'"),
        ("a int; b int", "cannot read ';'"),
    ],
)
def test_invalid_ddl_is_refused_with_hint(ddl: str, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        Schema.parse(ddl)


def test_columns_are_found_by_exact_name_then_by_case() -> None:
    schema = Schema.parse("id int, ID int, Name string")
    assert [schema.index(name) for name in ("id", "ID", "name")] == [0, 1, 2]
    with pytest.raises(SchemaError, match="ambiguous"):
        schema.index("Id")
    with pytest.raises(SchemaError, match="no column 'x'") as caught:
        schema.index("x")
    assert caught.value.hint == "the columns are id, ID, Name"
    assert schema.select(["name", "id"]) == Schema.parse("Name string, id int")


@pytest.mark.parametrize(
    ("type_", "expected"),
    [
        (pa.uint8(), "smallint"),
        (pa.uint64(), "decimal(20,0)"),
        (pa.float16(), "float"),
        (pa.large_string(), "string"),
        (pa.string_view(), "string"),
        (pa.binary(3), "binary"),
        (pa.date64(), "date"),
        (pa.timestamp("ns"), "timestamp_ntz"),
        (pa.timestamp("s", "Europe/Paris"), "timestamp"),
        (pa.dictionary(pa.int8(), pa.string()), "string"),
        (pa.large_list(pa.int8()), "array<tinyint>"),
        (pa.list_(pa.int8(), 2), "array<tinyint>"),
        (pa.decimal256(38, 2), "decimal(38,2)"),
        (pa.decimal128(2, 2), "decimal(2,2)"),
    ],
)
def test_other_arrow_types_map_to_spark_types(type_: pa.DataType, expected: str) -> None:
    assert expected == spark_type(type_)


@pytest.mark.parametrize("type_", [pa.null(), pa.time32("s"), pa.decimal256(50)])
def test_arrow_types_without_spark_type_are_named(type_: pa.DataType) -> None:
    with pytest.raises(SchemaError, match=r"column 'x': .* have no Spark SQL type"):
        Schema.from_arrow(pa.schema([("x", type_)]))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("int", "bigint", True),
        ("bigint", "int", False),
        ("bigint", "double", False),
        ("int", "double", True),
        ("int", "float", False),
        ("smallint", "float", True),
        ("bigint", "decimal(19,0)", True),
        ("bigint", "decimal(19,1)", False),
        ("decimal(5,2)", "decimal(6,3)", True),
        ("decimal(5,2)", "decimal(6,4)", False),
        ("string", "binary", False),
        ("boolean", "int", False),
    ],
)
def test_widening_is_lossless(old: str, new: str, *, expected: bool) -> None:
    assert expected == widens(old, new)


def test_types_are_canonical() -> None:
    assert canonical_type(" Decimal ( 10 , 2 ) ") == "decimal(10,2)"
    assert arrow_type("timestamp") == pa.timestamp("us", "UTC")
    assert arrow_type("timestamp_ntz") == pa.timestamp("us")
