"""Nested, text and JSON cases evaluated in process, and their recorded results.

python tests/support/sql_cases/nested_frames.py    records them again: pass test_nested.py before
"""

from __future__ import annotations

import json
from hashlib import blake2b
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa

from nosync_nb import rows
from nosync_nb.errors import ExpressionError
from nosync_nb.expressions import Expression, compile_expression
from nosync_nb.rows import Column, Schema
from nosync_nb.rows.arrow import from_python_values, to_python_values
from sql_cases import json_cases, nested_cases, text_cases
from sql_cases.nested_cases import SCHEMA

MODULES = (nested_cases, text_cases, json_cases)


def frame(cases: ModuleType = nested_cases) -> list[pa.Array]:
    typed = zip(cases.table(), cases.SCHEMA.types, strict=True)
    return [from_python_values(column, type_) for column, type_ in typed]


def compiled(sql: str, schema: Schema = SCHEMA) -> Expression:
    e = compile_expression(sql, schema, types=lambda *_: ["int"])
    assert e.local, f"{sql}: {e.why}"
    return e


def evaluated(e: Expression, columns: list[Column], n: int) -> tuple[list[Any], list[bool]]:
    """The raw values, None for rows that raise, and a flag for each row that does not."""
    try:
        return to_python_values(e.evaluate(columns, n), e.type), [True] * n
    except ExpressionError:
        values: list[Any] = []
        fine = []
        for i in range(n):
            try:
                one = e.evaluate([rows.slice_(c, i, i + 1) for c in columns], 1)
                values += to_python_values(one, e.type)
                fine.append(True)
            except ExpressionError:
                values.append(None)
                fine.append(False)
        return values, fine


RECORD = Path(__file__).parents[2] / "data" / "expressions_nested.json"


def digests_of_nested() -> dict[str, str]:
    found = {}
    for cases in MODULES:
        arrays = frame(cases)
        columns = [rows.from_arrow(a, t) for a, t in zip(arrays, cases.SCHEMA.types, strict=True)]
        for sql, _ in cases.every():
            e = compiled(sql, cases.SCHEMA)
            if (
                sql not in text_cases.PRINTED
            ):  # compared as numbers: the last digits are not Spark's
                text = repr(evaluated(e, columns, len(arrays[0])))
                found[sql] = f"{e.type} {blake2b(text.encode(), digest_size=6).hexdigest()}"
    return found


if __name__ == "__main__":
    RECORD.write_text(json.dumps(digests_of_nested(), indent=0, ensure_ascii=False) + "\n")
