"""Random expressions of the proved table: whatever a part does, the whole does what Spark does."""

from __future__ import annotations

import random

_LEAVES = {
    "int": ["x_int", "y_int", "x_smallint", "7", "-1", "0", "null"],
    "bigint": ["x_bigint", "y_bigint", "x_int", "3000000000"],
    "double": ["x_double", "y_double", "x_float", "2.5D", "1e3", "0D"],
    "boolean": ["x_boolean", "y_boolean", "true", "false", "null"],
    "string": ["x_string", "y_string", "'a'", "''", "'Σ'"],
    "date": ["x_date", "y_date", "date '2013-01-01'"],
}
_INNER = {
    "int": [
        "({int} + {int})",
        "({int} * {int})",
        "({int} % {int})",
        "abs({int})",
        "length({string})",
        "year({date})",
        "datediff({date}, {date})",
        "cast({double} as int)",
        "instr({string}, 'a')",
        "nullif({int}, {int})",
    ],
    "bigint": [
        "({bigint} - {bigint})",
        "({bigint} div {bigint})",
        "floor({double})",
        "(- {bigint})",
    ],
    "double": [
        "({double} + {double})",
        "({double} * {double})",
        "({bigint} / {int})",
        "round({double}, 2)",
        "sqrt({double})",
        "cast({bigint} as double)",
        "cast({string} as double)",
    ],
    "boolean": [
        "({int} > {int})",
        "({double} <= {double})",
        "({string} = {string})",
        "({boolean} and {boolean})",
        "({boolean} or {boolean})",
        "(not {boolean})",
        "({string} is null)",
        "({int} <=> {int})",
        "({string} like '%a%')",
        "({int} in (1, 2, 7))",
        "({date} < {date})",
        "isnan({double})",
        "({bigint} between {int} and {bigint})",
    ],
    "string": [
        "concat({string}, {string})",
        "upper({string})",
        "substring({string}, 1, 2)",
        "trim({string})",
        "cast({int} as string)",
        "cast({date} as string)",
    ],
    "date": ["date_add({date}, cast({boolean} as int))", "last_day({date})"],
}
_ANY = [
    "if({boolean}, {same}, {same})",
    "coalesce({same}, {same})",
    "case when {boolean} then {same} when {boolean} then {same} end",
    "nvl({same}, {same})",
]


def expressions(count: int, *, seed: int = 1) -> list[str]:
    """Returns random expressions, the same ones for the same seed."""
    draw = random.Random(seed)
    return [_grown(draw, draw.choice(list(_LEAVES)), 3) for _ in range(count)]


def _grown(draw: random.Random, type_: str, depth: int) -> str:
    if depth == 0 or (depth < 3 and draw.random() < 0.1):
        return draw.choice(_LEAVES[type_])
    template = draw.choice(_INNER[type_] + _ANY)
    while "{" in template:
        start, stop = template.index("{"), template.index("}")
        wanted = template[start + 1 : stop]
        grown = _grown(draw, type_ if wanted == "same" else wanted, depth - 1)
        template = template[:start] + grown + template[stop + 1 :]
    return template
