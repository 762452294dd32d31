"""The functions that an expression from a log may call: functions of Spark that only compute.

A user's own cell may call any function of Spark, because its author sees it. A log runs again at
every restart without supervision, and may come from another machine. So its expressions must not
call functions that load classes, read files or run code, even if the user signed the log. These are
`reflect`, `java_method`, XPath, and Avro and Protobuf with their schema files. Registered functions
are not allowed either: the stage waits until its cell runs.

The list has the allowed functions, not the forbidden ones. It is compared with the calls in the
parsed tree. It is also compared with every word before a parenthesis, because the grammars of Spark
and sqlglot differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise
from typing import Any

from sqlglot import exp

from nosync_nb.errors import ExpressionError
from nosync_nb.expressions.syntax.parser import Word, parse, tokens

_FUNCTIONS = """
abs acos acosh add_months aes_decrypt aes_encrypt aggregate any any_value approx_count_distinct
approx_percentile array array_agg array_append array_compact array_contains array_distinct
array_except array_insert array_intersect array_join array_max array_min array_position
array_prepend array_remove array_repeat array_size array_sort array_union arrays_overlap arrays_zip
ascii asin asinh assert_true atan atan2 atanh avg base64 bigint bin binary bit_and bit_count bit_get
bit_length bit_or bit_xor bitmap_and_agg bitmap_bit_position bitmap_bucket_number
bitmap_construct_agg bitmap_count bitmap_or_agg bool_and bool_or boolean bround btrim cardinality
cast cbrt ceil ceiling char char_length character_length chr coalesce collate collation collect_list
collect_set concat concat_ws contains conv convert_timezone corr cos cosh cot count count_if
count_min_sketch covar_pop covar_samp crc32 csc curdate current_catalog current_database
current_date current_schema current_time current_timestamp current_timezone current_user date
date_add date_diff date_format date_from_unix_date date_part date_sub date_trunc dateadd datediff
datepart day dayname dayofmonth dayofweek dayofyear decimal decode degrees double e element_at elt
encode endswith equal_null every exists exp expm1 extract factorial filter find_in_set first
first_value flatten float floor forall format_number format_string from_csv from_json from_unixtime
from_utc_timestamp get get_json_object getbit greatest grouping grouping_id hash hex
histogram_numeric hour hypot if ifnull initcap instr int is_valid_utf8 is_valid_variant
is_variant_null isnan isnotnull isnull json_array_length json_object_keys kurtosis last last_day
last_value lcase least left len length levenshtein like ilike listagg ln localtime localtimestamp
locate log log10 log1p log2 lower lpad ltrim luhn_check make_date make_dt_interval make_interval
make_time make_timestamp make_timestamp_ltz make_timestamp_ntz make_valid_utf8 make_ym_interval map
map_concat map_contains_key map_entries map_filter map_from_arrays map_from_entries map_keys
map_values map_zip_with mask max max_by md5 mean median min min_by minute mod mode
monotonically_increasing_id month monthname months_between named_struct nanvl negative next_day now
nullif nullifzero nvl nvl2 octet_length overlay parse_json parse_url percentile percentile_approx
percentile_cont percentile_disc pi pmod position positive pow power printf product quarter quote
radians raise_error rand randn random randstr reduce regexp regexp_count regexp_extract
regexp_extract_all regexp_instr regexp_like regexp_replace regexp_substr regr_avgx regr_avgy
regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy repeat replace reverse right
rint rlike round rpad rtrim schema_of_csv schema_of_json schema_of_variant sec second sentences
sequence session_user sha sha1 sha2 shiftleft shiftright shiftrightunsigned shuffle sign signum sin
sinh size skewness slice smallint some sort_array soundex space spark_partition_id split split_part
sqrt startswith std stddev stddev_pop stddev_samp str_to_map string string_agg struct substr
substring substring_index sum tan tanh time time_diff time_trunc timestamp timestamp_micros
timestamp_millis timestamp_seconds timestampadd timestampdiff tinyint to_binary to_char to_csv
to_date to_json to_number to_time to_timestamp to_timestamp_ltz to_timestamp_ntz to_unix_timestamp
to_utc_timestamp to_varchar to_variant_object transform transform_keys transform_values translate
trim trunc try_add try_aes_decrypt try_avg try_cast try_divide try_element_at try_make_interval
try_make_timestamp try_make_timestamp_ltz try_make_timestamp_ntz try_mod try_multiply try_parse_json
try_parse_url try_subtract try_sum try_to_binary try_to_date try_to_number try_to_time
try_to_timestamp try_url_decode try_validate_utf8 try_variant_get typeof ucase unbase64 unhex
uniform unix_date unix_micros unix_millis unix_seconds unix_timestamp upper url_decode url_encode
user uuid validate_utf8 var_pop var_samp variance variant_get version weekday weekofyear
width_bucket xxhash64 year zeroifnull zip_with
"""
_WORDS = """
all and as between both by case cast char character dec div distinct else end escape exists for from
group in interval is leading like mod not numeric on or placing some then to trailing try_cast using
varchar when where within xor
"""
_NODES = """
Add Alias All And Anonymous Any AtTimeZone Between BitwiseAnd BitwiseLeftShift BitwiseNot BitwiseOr
BitwiseRightShift BitwiseXor Boolean Bracket Case Cast Collate Column ColumnDef Concat CurrentDate
CurrentTime CurrentTimestamp CurrentUser DPipe DataType DataTypeParam Distinct Div Dot EQ Escape
Extract Filter GT GTE HexString ILike Identifier If IgnoreNulls In IntDiv Interval IntervalSpan Is
Kwarg LT LTE Lambda Like Literal Localtimestamp Mod Mul NEQ National Neg Not Null NullSafeEQ
NullSafeNEQ Or Order Ordered Paren RawString RegexpLike RespectNulls SessionUser Slice Star
Sub TryCast Tuple Var Where WithinGroup Xor JSONExtract RegexpILike
"""

FUNCTIONS = frozenset(_FUNCTIONS.split())
"""The functions that a log may call. Functions that load, read or run something are not in it, and
unknown ones neither.
"""

_BEFORE_PAREN = FUNCTIONS | frozenset(_WORDS.split())
_NODE_NAMES = frozenset(_NODES.split())
_PLAIN = re.compile(r"[\w\s.,+\-*/%<>=!|&^~()'\"\[\]?:;@#$]*\Z")
_QUERY = re.compile(r"\b(select|table|values|from|with)\b", re.IGNORECASE)
_SHOWN_MAX = 60


@lru_cache(maxsize=4096)
def disallowed_reason(sql: str) -> str | None:
    """Returns the reason why an expression from a log must not run, in words; None if it may run.

    Cost: a few us without unusual calls; otherwise, the text is parsed.
    """
    if _is_plain(sql):
        return None
    try:
        why = _of_words(sql, tokens(sql)) or _of_tree(parse(sql).tree)
    except (ExpressionError, RecursionError) as error:
        why = f"cannot be read ({error})"
    return None if why is None else f"the expression {_short(sql)} {why}"


def calls_only_built_in(names: Iterable[str]) -> bool:
    """Returns True if all names before parentheses are functions of Spark that only compute.

    Args:
        names: the names, in lower case.
    """
    return _BEFORE_PAREN.issuperset(names)


def _is_plain(sql: str) -> bool:
    """Returns True if each parenthesis follows an allowed name or an operator, even in strings."""
    if "(" not in sql and "{" not in sql:
        return True
    if "--" in sql or "/*" in sql or not _PLAIN.match(sql) or _QUERY.search(sql):
        return False
    return all(_is_known(sql, opening.start()) for opening in re.finditer(r"\(", sql))


def _is_known(sql: str, at: int) -> bool:
    """Returns True if the word before a parenthesis is an allowed function or an operator."""
    before = sql[:at].rstrip()
    name = re.search(r"\w*\Z", before)
    assert name is not None
    head = before[: name.start()].rstrip()
    if not name.group():
        return before[-1:] not in (")", "]", "'", '"')
    return name.group().lower() in _BEFORE_PAREN and head[-1:] != "."


def _of_words(sql: str, words: tuple[Word, ...]) -> str | None:
    """Returns the reason why a log must not contain the words of an expression; None if it may."""
    if ("--" in sql or "/*" in sql) and (
        "\r" in sql or "\\\n" in sql or sql.count("/*") + sql.count("--") > 1
    ):
        return "has comments that Spark may read otherwise"
    for word, following in pairwise(words):
        if following.text != "(":
            continue
        if word.kind in ("string", "number") or word.text in (")", "]"):
            return "calls a computed function"
        if word.kind in ("word", "name") and word.text.lower() not in _BEFORE_PAREN:
            return _calls(word.text)
    return None


def _of_tree(tree: exp.Expression) -> str | None:
    """Returns the reason why a log must not contain a syntax tree; None if it may."""
    for node in tree.walk():
        kind = type(node).__name__
        if kind not in _NODE_NAMES:
            return f"has a part that is not allowed in a log ({kind})"
        if isinstance(node, exp.Anonymous):
            name: Any = node.name
            if not isinstance(name, str) or name.lower() not in FUNCTIONS:
                return _calls(str(name))
            if isinstance(node.parent, exp.Dot) and node.parent.expression is node:
                return _calls(node.parent.sql())
        if isinstance(node, exp.Alias) and isinstance(node.parent, exp.Paren):
            return "reads other rows"
    return None


def _calls(name: str) -> str:
    return f"calls '{name[:_SHOWN_MAX]}', which is not allowed in a log"


def _short(sql: str) -> str:
    return repr(sql if len(sql) <= _SHOWN_MAX else f"{sql[:_SHOWN_MAX]}...")
