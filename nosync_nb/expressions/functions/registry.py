"""The table of functions whose results are proved equal to Spark's.

`FUNCTIONS` has the calls by name, and `OPERATORS` the operators by sign or keyword. An entry is a
`Function` (argument types, result type, kernel) or a rule: a Python function from argument nodes to
a node. A rule raises `NotProvedError` for arguments that it does not support. All other functions
are left to Spark. `tests/expressions/vs_spark/test_functions.py` compares every entry with Spark;
an entry without a test case fails there.

`RESULTS` has the functions whose result type is the same for all arguments. So their calls can be
described without starting Spark. Only Spark computes these functions, or they are computed in
process for some arguments only. A test asks Spark for the type of each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nosync_nb.expressions.functions import (
    collections,
    comparisons,
    datetimes,
    decimals,
    hashes,
    intervals,
    json_functions,
    mathematics,
    nondeterministic,
    patterns,
    rules,
)
from nosync_nb.expressions.functions import strings as wordings
from nosync_nb.expressions.functions.rules import OF_BYTES, OF_DAYS, Function, Rule
from nosync_nb.expressions.kernels import datetimes as dates
from nosync_nb.expressions.kernels import numeric, strings
from nosync_nb.expressions.kernels.kernel import Kernel, TextKernel

_NAMES = {
    "string": """
        base64 bin btrim char chr concat_ws conv current_catalog current_database
        current_schema current_timezone current_user date_format dayname
        format_number format_string from_unixtime get_json_object hex initcap lcase lower ltrim
        make_valid_utf8 mask md5 monthname parse_url printf quote regexp_extract regexp_replace
        regexp_substr repeat replace right rtrim schema_of_csv schema_of_json sha sha1 sha2 soundex
        space split_part string substring_index to_char to_csv to_json to_varchar translate trim
        try_parse_url try_url_decode try_validate_utf8 ucase upper url_decode url_encode user
        validate_utf8 version xpath_string
    """,
    "boolean": """
        array_contains arrays_overlap boolean contains endswith equal_null ilike is_valid_utf8
        isnan isnotnull isnull like luhn_check map_contains_key regexp regexp_like rlike
        startswith xpath_boolean
    """,
    "smallint": "xpath_short",
    "int": """
        ascii bit_count bit_length cardinality char_length character_length day
        dayofmonth dayofweek dayofyear find_in_set hash hour instr json_array_length len length
        levenshtein locate minute month octet_length position quarter regexp_count regexp_instr
        second size unix_date weekday weekofyear xpath_int year array_size
    """,
    "bigint": """
        array_position bigint crc32 factorial to_unix_timestamp unix_micros
        unix_millis unix_seconds unix_timestamp width_bucket xpath_long xxhash64
    """,
    "float": "float xpath_float",
    "double": """
        acos acosh asin asinh atan atan2 atanh cbrt cos cosh cot csc degrees double e exp expm1
        hypot ln log log10 log1p log2 months_between pi pow power radians rint sec sign signum
        sin sinh sqrt tan tanh xpath_double xpath_number
    """,
    "date": """
        add_months date date_from_unix_date date_sub last_day make_date next_day to_date
        trunc try_to_date
    """,
    "timestamp": """
        date_trunc from_utc_timestamp make_timestamp make_timestamp_ltz timestamp timestamp_micros
        timestamp_millis timestamp_seconds to_timestamp to_timestamp_ltz to_utc_timestamp
        try_make_timestamp try_make_timestamp_ltz try_to_timestamp
    """,
    "timestamp_ntz": """
        convert_timezone make_timestamp_ntz to_timestamp_ntz try_make_timestamp_ntz
    """,
    "binary": "aes_decrypt aes_encrypt binary encode to_binary try_to_binary unbase64 unhex",
    "array<string>": "json_object_keys regexp_extract_all split xpath",
    "array<array<string>>": "sentences",
    "map<string,string>": "str_to_map",
}

RESULTS = {name: type_ for type_, names in _NAMES.items() for name in names.split()}


def _text(kernel: TextKernel, *parameters: str, result: str = "string", **more: Any) -> Function:
    """Returns a function of text and other arguments."""
    return Function(("string", *parameters), result, kernel, **more)


def _calendar(function: Callable[[Any], Any], result: str = "int") -> Function:
    return Function(("date",), result, Kernel(function))


_ADD_DAYS = Function(("date", "int"), "date", dates.shift(np.add), refused=OF_DAYS)
_SUB_DAYS = Function(("date", "int"), "date", dates.shift(np.subtract), refused=OF_DAYS)
_DIFFERENCE = Function(("date", "date"), "int", Kernel(dates.difference))
_UPPER = Function(("string",), "string", strings.upper)
_LOWER = Function(("string",), "string", strings.lower)
_SUBSTRING = _text(strings.substring, "int", "int", optional=1, refused=OF_BYTES)
_SQRT = Function(("double",), "double", numeric.square_root("double"))
_SIGN = intervals.signum(Function(("double",), "double", numeric.sign("double")).bind)
_DAY = _calendar(dates.day)
_ABSOLUTE = intervals.absolute(
    decimals.same_type(signed=False, other=rules.same_type(numeric.absolute))
)
_NEGATIVE = intervals.negative(
    decimals.same_type(signed=True, other=rules.same_type(numeric.negate))
)
_REMAINDER = decimals.arithmetic("%", rules.arithmetic(numeric.remainder))
_PLUS = intervals.plus(decimals.arithmetic("+", rules.plus))
_MINUS = intervals.minus(decimals.arithmetic("-", rules.minus))
_TIMES = intervals.multiplied(decimals.arithmetic("*", rules.arithmetic(numeric.multiply)))
_OVER = intervals.divided(decimals.arithmetic("/", rules.divided))
_CEILING = decimals.rounded_to_integer(1, rules.rounded_to_bigint(np.ceil))

FUNCTIONS: dict[str, Function | Rule] = {
    **mathematics.FUNCTIONS,
    **hashes.FUNCTIONS,
    **json_functions.FUNCTIONS,
    **patterns.FUNCTIONS,
    **wordings.FUNCTIONS,
    **wordings.FORMAT_FUNCTIONS,
    "abs": _ABSOLUTE,
    "negative": _NEGATIVE,
    "positive": intervals.unchanged(decimals.positive(rules.positive)),
    "mod": _REMAINDER,
    "pmod": mathematics.positive_remainder(rules.integers(numeric.positive_remainder)),
    "try_add": mathematics.try_rule(_PLUS),
    "try_subtract": mathematics.try_rule(_MINUS),
    "try_multiply": mathematics.try_rule(_TIMES),
    "try_divide": mathematics.try_rule(_OVER),
    "try_mod": mathematics.try_rule(_REMAINDER),
    "sqrt": _SQRT,
    "sign": _SIGN,
    "signum": _SIGN,
    "floor": decimals.rounded_to_integer(-1, rules.rounded_to_bigint(np.floor)),
    "ceil": _CEILING,
    "ceiling": _CEILING,
    "bround": decimals.rounded(mathematics.rounded(even=True), even=True),
    "round": decimals.rounded(mathematics.rounded(even=False), even=False),
    "isnan": rules.is_nan,
    "greatest": comparisons.extreme(numeric.choose_greater),
    "least": comparisons.extreme(numeric.choose_less),
    "coalesce": comparisons.coalesce(),
    "nvl": comparisons.coalesce(2),
    "ifnull": comparisons.coalesce(2),
    "nvl2": comparisons.nvl2,
    "nullif": comparisons.null_if,
    "if": comparisons.if_,
    "isnull": comparisons.is_null,
    "isnotnull": comparisons.is_not_null,
    "equal_null": comparisons.null_safe_equal,
    "boolean": rules.cast_to("boolean"),
    "tinyint": rules.cast_to("tinyint"),
    "smallint": rules.cast_to("smallint"),
    "int": rules.cast_to("int"),
    "bigint": rules.cast_to("bigint"),
    "float": rules.cast_to("float"),
    "double": rules.cast_to("double"),
    "string": rules.cast_to("string"),
    "date": rules.cast_to("date"),
    "timestamp": rules.cast_to("timestamp"),
    "binary": rules.cast_to("binary"),
    "decimal": rules.cast_to("decimal(10,0)"),
    "concat": rules.concat,
    "upper": _UPPER,
    "ucase": _UPPER,
    "lower": _LOWER,
    "lcase": _LOWER,
    "reverse": _text(strings.reverse, refused=OF_BYTES),
    "trim": wordings.TRIMMED["both"],
    "ltrim": wordings.TRIMMED["leading"],
    "rtrim": wordings.TRIMMED["trailing"],
    "substring": _SUBSTRING,
    "substr": _SUBSTRING,
    "left": _text(strings.left, "int", refused=OF_BYTES),
    "right": _text(strings.right, "int"),
    "startswith": _text(strings.starts_with, "string", result="boolean"),
    "endswith": _text(strings.ends_with, "string", result="boolean"),
    "contains": _text(strings.contains, "string", result="boolean"),
    "instr": _text(strings.instr, "string", result="int"),
    "replace": _text(strings.replace, "string", "string", optional=1),
    "lpad": _text(strings.lpad, "int", "string", optional=1, refused=OF_BYTES),
    "rpad": _text(strings.rpad, "int", "string", optional=1, refused=OF_BYTES),
    "repeat": _text(strings.repeat, "int"),
    "year": _calendar(dates.year),
    "quarter": _calendar(dates.quarter),
    "month": _calendar(dates.month),
    "day": _DAY,
    "dayofmonth": _DAY,
    "dayofyear": _calendar(dates.day_of_year),
    "dayofweek": _calendar(dates.day_of_week),
    "weekday": _calendar(dates.weekday),
    "last_day": _calendar(dates.last_day, "date"),
    "hour": rules.clock(dates.hour),
    "minute": rules.clock(dates.minute),
    "second": rules.clock(dates.second),
    "unix_micros": rules.micros("timestamp", "bigint"),
    "timestamp_micros": rules.micros("bigint", "timestamp"),
    "date_add": _ADD_DAYS,
    "dateadd": _ADD_DAYS,
    "date_sub": _SUB_DAYS,
    "datediff": _DIFFERENCE,
    "date_diff": _DIFFERENCE,
    **datetimes.FUNCTIONS,
    **intervals.FUNCTIONS,
    **collections.FUNCTIONS,
    **nondeterministic.FUNCTIONS,
}

OPERATORS: dict[str, Rule] = {
    **mathematics.OPERATORS,
    "+": _PLUS,
    "-": _MINUS,
    "*": _TIMES,
    "/": _OVER,
    "%": _REMAINDER,
    "div": decimals.arithmetic("div", rules.integral_divided),
    "neg": _NEGATIVE,
    **comparisons.COMPARISONS,
    "<=>": comparisons.null_safe_equal,
    "and": comparisons.logic(conjunction=True),
    "or": comparisons.logic(conjunction=False),
    "not": comparisons.not_,
    "in": comparisons.in_,
    "like": patterns.like_rule(),
    "ilike": patterns.like_rule(lower=True),
    "is true": comparisons.is_truth(wanted=True),
    "is false": comparisons.is_truth(wanted=False),
    "||": rules.concat,
}
