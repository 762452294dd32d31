"""Cases of functions of text, bits and numbers, on the values of expression_cases.py."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Case(NamedTuple):
    """An expression and its twin that is null where it raises."""

    sql: str
    twin: str | None = None


NEAR = [
    "exp(x_double)", "expm1(x_double)", "ln(x_double)", "log(2,x_double)",
    "log(x_double, y_double)", "log10(x_double)", "log2(x_double)", "pow(x_double,2)",
    "power(x_double,y_double)", "sin(x_double)", "cos(x_double)", "tan(x_double)", "asin(x_double)",
    "atan2(x_double,y_double)", "sinh(x_double)", "cbrt(x_double)", "hypot(x_double,y_double)",
    "log1p(x_double)", "cot(x_double)", "acos(x_double)", "atan(x_double)", "cosh(x_double)",
    "tanh(x_double)", "sec(x_double)", "csc(x_double)",
]  # fmt: skip
"""Doubles that may differ from Java's in the last place, and by processor."""

MATHEMATICS = frozenset(each.partition("(")[0] for each in NEAR)

PRINTED = {"cast(x_double as string)": float, "cast(x_float as string)": np.float32}
"""Texts of numbers whose digits depend on the version of Java, and how to read them."""

PLAIN = [
    "degrees(x_double)", "radians(x_double)", "factorial(x_tinyint)", "rint(x_double)",
    "x_int & y_int", "x_int | y_bigint", "x_int ^ y_tinyint", "~x_smallint", "shiftleft(x_int,2)",
    "shiftright(x_bigint,y_int)", "shiftrightunsigned(x_int, y_int)", "x_int << 1",
    "bit_count(x_int)", "bit_count(x_boolean)", "pmod(x_double,2D)", "round(x_double,-1)",
    "round(x_float,1)", "bround(x_double,1)", "nanvl(x_double,y_double)", "nanvl(x_float,y_double)",
    "greatest(x_string,y_string)", "least(x_string,y_string, 'b')", "x_float in (0.1f)",
    "x_int in (y_bigint)", "try_add(x_int,y_int)", "try_divide(x_int,y_int)",
    "try_multiply(x_bigint,y_int)", "try_subtract(x_tinyint,y_tinyint)", "try_mod(x_bigint,y_int)",
    "try_divide(x_int / y_int, y_int)", "try_mod(x_decimal_10_2 % y_int, y_int)",
    "hash(x_int,x_string)",
    "hash(x_double, y_float, x_binary, x_date, x_boolean, x_decimal_10_2, x_decimal_38_10)",
    "xxhash64(x_int,x_string)",
    "xxhash64(x_double, y_float, x_binary, x_timestamp, x_decimal_10_2, x_decimal_38_10)",
    "md5(x_string)", "md5(x_binary)", "sha(x_string)", "sha2(x_string,256)", "sha2(x_binary,x_int)",
    "crc32(x_string)", "base64(x_binary)", "base64(x_string)", "base64(repeat(x_string, 40))",
    "base64(repeat('ab3', 19))", "base64(repeat('ab3', 38) || x_string)",
    "unbase64(base64(repeat(x_string, 90)))", "unbase64(base64(x_binary))", "hex(x_int)",
    "hex(x_string)", "hex(x_binary)", "unhex(x_string)", "unhex(hex(x_string))", "bin(x_bigint)",
    "concat_ws('-',x_string,y_string)", "concat_ws(x_string,y_string,x_int,'z')",
    "initcap(x_string)", "length(x_binary)", "octet_length(x_string)", "octet_length(x_binary)",
    "bit_length(x_string)", "trim(both 'a' from x_string)", "trim(leading 'a' from x_string)",
    "trim(trailing ' c' from x_string)", "btrim(x_string)", "btrim(x_string, 'a')",
    "ltrim('a', x_string)", "substr(x_string,y_tinyint,x_tinyint)",
    "substring(x_string, x_int, y_int)", "substring_index(x_string,'-',1)",
    "substring_index(x_string,'a',-2)", "substring_index(x_string,'aa',-1)",
    "substring_index(x_string,y_string,2)", "split_part(x_string,'-',2)", "locate('a',x_string,2)",
    "locate(y_string,x_string,x_int)", "position('a' in x_string)", "position('c', x_string, 2)",
    "translate(x_string,'ab','x')", "translate(x_string,y_string,'xyz')",
    "endswith(x_string,y_string)", "contains(x_string,y_string)", "instr(x_string,y_string)",
    "replace(x_string,y_string,'q')", "lpad(x_string,5,y_string)", "left(x_string,y_tinyint)",
    "ascii(x_string)", "chr(x_int)", "chr(x_bigint)", "char(65)", "space(x_tinyint)",
    "soundex(x_string)", "levenshtein(x_string,y_string)", "levenshtein(x_string,y_string,3)",
    "overlay(x_string placing 'zz' from 2)", "overlay(x_string placing y_string from 2 for 1)",
    "format_number(x_double,2)", "format_number(x_bigint,0)", "format_number(x_decimal_26_6,3)",
    "format_number(x_float,1)", "format_string('%d-%s',x_int,x_string)",
    "format_string('%5d|%-7s|%x%%',x_int,x_string,x_bigint)", "x_string like 'a\\\\_c'",
    "x_string like 'a\\_c'", "x_string like 'a\\\\%%'", "x_string ilike 'A%'",
    "x_string not like 'a/%c' escape '/'", "x_string like 'a/%c' escape '/'",
    "x_string rlike '^[a-z]+$'", "x_string rlike r'^\\d+$'", "x_string rlike '\\\\s'",
    "regexp_replace(x_string,'[0-9]','#')", "regexp_replace(x_string,'(\\\\d)(\\\\w*)','$2-$1')",
    "regexp_extract(x_string,'([0-9]+)',1)", "regexp_extract(x_string,'(\\\\w+)-(\\\\w+)',2)",
    "regexp_extract(x_string,'.c$',0)", "regexp_like(x_string,'b')", "rlike(x_string, 'a')",
    "regexp(x_string, '^a')", "regexp_count(x_string,'a')", "regexp_instr(x_string,'x')",
    "regexp_substr(x_string,'[a-c]+')", "x_string regexp '(?i)ABC'", "x_string rlike '^.$'",
    "x_string rlike 'a.c$'", "'it''s' || x_string", "'a' 'b' || x_string", "r'a\\b' || x_string",
    "'\\u00e9\\n\\t\\'' || x_string", '"say ""x""" || x_string', "replace(x_string, '\\n', ' ')",
    "x_string = 'a\\nc'", "trim(x_string) like '%a'", "x_int << 2 & 7 | 1", "x_bigint & 255 = 3",
    "regexp_replace(x_string,'a+','')", "pi() + x_double", "e() * x_double", "x_int >> 1",
    "x_int >>> y_tinyint % 7 | 3", "X  '1f' < x_binary", "x_string ilike '%é'", "sha1(x_string)",
    "getbit(x_int, 3)", "bit_get(x_int, 0)", "printf('%s', x_int)", "to_binary(x_string, 'utf-8')",
    "try_to_binary(x_string, 'utf8')", "try_to_binary(x_string)",
]  # fmt: skip

TWINS = {
    "to_binary(x_string)": "try_to_binary(x_string)",
    "to_binary(y_string, 'hex')": "try_to_binary(y_string, 'HEX')",
    "pmod(x_double,y_double)": "case when y_double <> 0 then pmod(x_double, y_double) end",
    "pmod(x_float,y_float)": "case when y_float <> 0 then pmod(x_float, y_float) end",
}
"""Expressions that raise, and their twins that are null instead."""
