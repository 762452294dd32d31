"""Values as text and text as values: what NoSync decides and no setting changes."""

from __future__ import annotations

import random
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sql_cases.expression_cases import column_of

from nosync_nb import rows
from nosync_nb.errors import ExpressionError
from nosync_nb.expressions import SqlSettings, compile_expression
from nosync_nb.expressions.kernels.casts import double_text, float_text
from nosync_nb.rows import Schema


def evaluate(sql: str, type_: str, values: list[Any]) -> list[Any]:
    e = compile_expression(sql, Schema.parse(f"x {type_}"))
    return rows.to_pylist(e.evaluate([column_of(values, type_)], len(values)), e.type)


def test_double_text_is_shortest_exact_form() -> None:
    drawn = random.Random(5)
    for _ in range(2000):
        (value,) = struct.unpack("<d", drawn.randbytes(8))
        if value - value == 0.0:
            text = double_text(value)
            assert float(text) == value
            digits = text.lstrip("-").partition("E")[0].replace(".", "").strip("0")
            assert (
                len(digits) <= len(repr(value).partition("e")[0].replace(".", "").strip("-0")) + 1
            )


def test_float_text_is_exact() -> None:
    drawn = np.random.default_rng(5).integers(0, 2**32, 2000, dtype=np.uint32).view(np.float32)
    for value in drawn[np.isfinite(drawn)].tolist():
        assert float(np.float32(float_text(value))) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2e23, "2.0E23"), (1e-323, "9.9E-324"), (5e-324, "4.9E-324"), (1e22, "1.0E22"),
        (-0.0, "-0.0"), (9999999.0, "9999999.0"), (1e7, "1.0E7"), (0.001, "0.001"),
        (0.0009, "9.0E-4"), (-1234.5, "-1234.5"),
    ],
)  # fmt: skip
def test_doubles_are_written_as_in_java(value: float, text: str) -> None:
    assert double_text(value) == text


@pytest.mark.parametrize(
    "text", ["10:30", "T10", "t10:30", " 10:30:00.5 ", "10:30:00 Europe/Berlin"]
)
def test_cast_refuses_time_without_day_and_try_cast_gives_null(text: str) -> None:
    texts, moment = ["2024-01-05", text], 1_704_412_800_000_000
    for tried in ("try_cast(x as timestamp)", "try_to_timestamp(x)"):
        assert evaluate(f"unix_micros({tried})", "string", texts) == [moment, None]
    literals = (f"try_cast('{text}' as timestamp)", f"try_to_timestamp('{text}')")
    for tried in () if text.startswith("t") else literals:
        assert evaluate(f"unix_micros({tried})", "string", texts) == [None, None]
    assert evaluate("try_cast(x as timestamp_ntz)", "string", [text]) == [None]
    off, reason = SqlSettings("UTC", ansi=False), "has no day in the row"
    if text.startswith("t"):
        reason = "is not of type timestamp"
        e = compile_expression("cast(x as timestamp)", Schema.parse("x string"), settings=off)
        assert rows.to_pylist(e.evaluate([rows.objects([text])], 1), e.type) == [None]
    for settings in (SqlSettings("UTC", True), off):
        e = compile_expression("cast(x as timestamp)", Schema.parse("x string"), settings=settings)
        if settings.ansi or not text.startswith("t"):
            with pytest.raises(ExpressionError, match=reason):
                e.evaluate([rows.objects(texts)], 2)


@pytest.mark.parametrize("call", ["cast", "try_cast"])
def test_invalid_utf_8_is_no_text(call: str) -> None:
    with pytest.raises(ExpressionError, match="is not valid UTF-8"):
        evaluate(f"{call}(x as string)", "binary", [b"a", b"\xff"])


def test_binary_is_written_as_bytes() -> None:
    assert evaluate("hex(X'61') || hex(x'') || hex(X'123')", "int", [1]) == ["610123"]
    assert evaluate("x = X'00ff'", "binary", [b"\x00\xff", b""]) == [True, False]


def test_nested_values_are_written_in_process_in_utc_only() -> None:
    schema = Schema.parse("x array<timestamp>, y array<timestamp_ntz>")
    berlin = SqlSettings("Europe/Berlin", True)
    told = compile_expression(
        "cast(x as string)", schema, types=lambda *_: ["string"], settings=berlin
    )
    assert not told.local
    assert compile_expression("cast(y as string)", schema, settings=berlin).local


def test_many_times_are_written_like_few() -> None:
    days = [0, 1_357_016_767_890_000, 1_357_016_767_000_000, -1, None]
    wide = pa.array(days * 400, pa.timestamp("us"))
    e = compile_expression("cast(x as string)", Schema.parse("x timestamp_ntz"))
    few = evaluate("cast(x as string)", "timestamp_ntz", days)
    assert rows.to_pylist(e.evaluate([wide], 2000), "string") == few * 400
