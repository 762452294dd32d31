"""Random expressions of supported functions, for comparing compositions with Spark."""

from __future__ import annotations

import random

_LEAVES = {
    "int": ["x_int", "y_int", "x_smallint", "y_tinyint", "7", "-1", "0", "null"],
    "bigint": ["x_bigint", "y_bigint", "x_int", "3000000000"],
    "double": ["x_double", "y_double", "x_float", "2.5D", "1e3", "0D"],
    "decimal": ["x_decimal_10_2", "y_decimal_18_0", "x_decimal_26_6", "y_decimal_38_10", "1.5"],
    "boolean": ["x_boolean", "y_boolean", "true", "false", "cast(null as boolean)"],
    "string": ["x_string", "y_string", "'a'", "''", "'Σ'"],
    "binary": ["x_binary", "y_binary", "X'61ff'"],
    "date": ["x_date", "y_date", "date '2013-01-01'"],
    "timestamp": ["x_timestamp", "y_timestamp", "timestamp '2020-02-29 23:59:59.5'"],
    "span": ["interval 1 day", "make_dt_interval(x_tinyint, y_int)", "interval '-1.5' second"],
    "months": ["interval 5 months", "make_ym_interval(x_tinyint, y_smallint)", "interval 1 year"],
    "ints": ["array(x_int, y_int)", "array(1, null, 3)", "array(x_smallint, 2, y_int, x_int)"],
    "strings": ["array(x_string, y_string)", "split(x_string, 'a')", "array('b', null, 'a')"],
}
_INNER = {
    "int": [
        "({int} + {int})", "({int} * {int})", "({int} % {int})", "abs({int})", "length({string})",
        "year({date})", "datediff({date}, {date})", "cast({double} as int)", "instr({string}, 'a')",
        "nullif({int}, {int})", "bit_count({bigint})", "cast({decimal} as int)",
        "cast({string} as int)", "try_cast({string} as int)", "levenshtein({string}, {string})",
        "locate('a', {string}, {int})", "ascii({string})", "weekofyear({date})",
        "hour({timestamp})", "extract(dow from {date})", "size({ints})", "size({strings})",
        "try_element_at({ints}, {int})", "get({ints}, {int})", "{ints}[1]", "array_max({ints})",
        "aggregate({ints}, 0, (z, x) -> z + coalesce(x, 0))",
        "hash({string}, {int}, {decimal}, {date})", "({int} & {int})", "shiftleft({int}, 3)",
        "octet_length({string})", "regexp_count({string}, 'a')", "unix_date({date})",
        "pmod({int}, {int})", "greatest({int}, {int})", "array_position({ints}, {int})",
        "find_in_set({string}, 'a,b,,é')", "extract(day from {span})",
        "cast(extract(year from {months}) as int)",
    ],
    "bigint": [
        "({bigint} - {bigint})", "({bigint} div {bigint})", "floor({double})", "(- {bigint})",
        "xxhash64({string}, {bigint}, {timestamp})", "crc32({string})", "unix_seconds({timestamp})",
        "cast({decimal} as bigint)", "ceil({double})", "try_add({bigint}, {bigint})",
        "unix_micros({timestamp})", "timestampdiff(hour, {timestamp}, {timestamp})",
        "({bigint} << 2)", "({decimal} div {decimal})",
    ],
    "double": [
        "({double} + {double})", "({double} * {double})", "({bigint} / {int})",
        "round({double}, 2)", "sqrt({double})", "cast({bigint} as double)",
        "cast({string} as double)", "cast({decimal} as double)", "rint({double})",
        "bround({double}, 1)", "nanvl({double}, {double})", "months_between({date}, {date})",
        "try_divide({int}, {int})", "degrees({double})", "pmod({double}, {double})",
        "({decimal} * {double})",
    ],
    "decimal": [
        "({decimal} + {decimal})", "({decimal} - {decimal})", "({decimal} * {decimal})",
        "({decimal} / {decimal})", "({decimal} % {decimal})", "({decimal} * {int})",
        "(- {decimal})", "abs({decimal})", "round({decimal}, 1)", "bround({decimal}, -1)",
        "floor({decimal})", "ceil({decimal})", "cast({int} as decimal(12,3))",
        "cast({bigint} as decimal(20,0))", "cast({string} as decimal(10,2))",
        "cast({double} as decimal(20,4))", "cast({decimal} as decimal(15,2))",
        "try_divide({decimal}, {decimal})", "greatest({decimal}, {decimal})",
    ],
    "boolean": [
        "({int} > {int})", "({double} <= {double})", "({string} = {string})",
        "({boolean} and {boolean})", "({boolean} or {boolean})", "(not {boolean})",
        "({string} is null)", "({int} <=> {int})", "({string} like '%a%')", "({int} in (1, 2, 7))",
        "({date} < {date})", "isnan({double})", "({bigint} between {int} and {bigint})",
        "({string} rlike '[a-c]+')", "({string} ilike 'A%')", "startswith({string}, {string})",
        "array_contains({ints}, {int})", "({decimal} < {decimal})", "({decimal} = {int})",
        "({timestamp} < {timestamp})", "({date} <= {timestamp})", "exists({ints}, x -> x > {int})",
        "forall({ints}, x -> x % 2 = 0)", "({ints} = {ints})", "({binary} < {binary})",
        "cast({string} as boolean)", "({span} < {span})", "({months} = {months})",
    ],
    "string": [
        "concat({string}, {string})", "upper({string})", "substring({string}, 1, 2)",
        "trim({string})", "cast({int} as string)", "cast({date} as string)", "initcap({string})",
        "lower({string})", "concat_ws('-', {string}, {string})",
        "substring_index({string}, 'a', 1)", "split_part({string}, '-', 1)",
        "translate({string}, 'ab', 'x')", "regexp_replace({string}, '[0-9]+', '#')",
        "regexp_extract({string}, '([a-z]+)', 1)", "cast({decimal} as string)",
        "cast({timestamp} as string)", "cast({boolean} as string)", "hex({bigint})",
        "hex({string})", "md5({string})", "sha2({binary}, 256)", "base64({binary})",
        "lpad({string}, 5, 'xy')", "reverse({string})", "left({string}, {int})",
        "date_format({timestamp}, 'yyyy-MM-dd HH:mm:ss')", "date_format({date}, 'E d MMM yy')",
        "format_number({bigint}, 2)", "array_join({strings}, '-', '?')", "soundex({string})",
        "bin({bigint})", "chr({int})", "overlay({string} placing 'zz' from 2)",
        "repeat({string}, 2)", "replace({string}, 'a', {string})",
        "to_json(named_struct('a', {int}, 'b', {string}))", "cast({ints} as string)",
        "get_json_object(to_json(named_struct('a', {string})), '$.a')", "dayname({date})",
        "element_at({strings}, 1)", "format_string('%s|%d', {string}, {int})",
        "{string} || {string}", "cast({span} as string)", "cast({months} as string)",
    ],
    "binary": [
        "cast({string} as binary)",
        "unhex(hex({string}))",
        "unbase64(base64({binary}))",
        "concat({binary}, {binary})",
    ],
    "date": [
        "date_add({date}, cast({boolean} as int))", "last_day({date})", "add_months({date}, {int})",
        "next_day({date}, 'MON')", "trunc({date}, 'month')", "cast({timestamp} as date)",
        "cast({string} as date)", "to_date({string}, 'yyyy-MM-dd')", "date_from_unix_date({int})",
        "make_date({int}, {int}, 1)", "({date} + interval 1 month)", "({date} - {months})",
    ],
    "timestamp": [
        "timestamp_seconds({int})", "date_trunc('hour', {timestamp})",
        "({timestamp} + interval 1 day)", "cast({date} as timestamp)", "to_timestamp({string})",
        "timestampadd(day, {int}, {timestamp})", "try_to_timestamp({string}, 'yyyy-MM-dd')",
        "({timestamp} + {span})", "({timestamp} - {months})",
    ],
    "span": [
        "({timestamp} - {timestamp})", "({date} - {date})", "({span} + {span})",
        "({span} - {span})", "({span} * {int})", "({span} * {double})", "({span} / {decimal})",
        "(- {span})", "abs({span})", "greatest({span}, {span})", "cast({span} as interval hour)",
    ],
    "months": [
        "({months} + {months})",
        "({months} * {int})",
        "({months} / {bigint})",
        "(- {months})",
        "cast({months} as interval year)",
    ],
    "ints": [
        "array({int}, {int})", "transform({ints}, x -> x + {int})",
        "filter({ints}, x -> x > {int})", "sort_array({ints})", "array_distinct({ints})",
        "concat({ints}, {ints})", "array_union({ints}, {ints})", "array_remove({ints}, 1)",
    ],
    "strings": [
        "array({string}, {string})",
        "split({string}, '[-a]')",
        "transform({strings}, x -> upper(x))",
        "array_distinct({strings})",
        "sort_array({strings}, false)",
    ],
}  # fmt: skip
_WRITTEN = ("span", "months")
"""Types whose values leave Spark as texts, or inside another value."""
_ANY = [
    "if({boolean}, {same}, {same})",
    "coalesce({same}, {same})",
    "case when {boolean} then {same} when {boolean} then {same} end",
    "nvl({same}, {same})",
]


def expressions(count: int, *, seed: int = 1) -> list[str]:
    """Returns random expressions, the same ones for the same seed."""
    draw = random.Random(seed)
    roots = [type_ for type_ in _LEAVES if type_ not in _WRITTEN]
    return [_grown(draw, draw.choice(roots), 3) for _ in range(count)]


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
