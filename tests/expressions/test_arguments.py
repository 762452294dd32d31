"""Argument lists of SQL functions: the same number and keywords as in Spark."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from sql_cases.implicit_calls import CALLS, Asked, frame

from nosync_nb.expressions.functions.registry import FUNCTIONS

TYPES = ("int", "string", "date", "double", "boolean", "binary")
MORE = ("c0_int", "c0_string", "1", "'a'", "1, 2", "'a', 'b'", "null")
FORMS = """
substring(c0_string from 2)
substring(c0_string from 1 for 2)
substring(c0_string from 1, 2)
substring(c0_string, 1 for 2)
substr(c0_string from 2)
position('a' in c0_string)
position('a', c0_string, 2)
overlay(c0_string placing 'x' from 2)
overlay(c0_string placing 'x' from 2 for 1)
overlay(c0_string, 'x', 2, 1)
trim(both from c0_string)
trim(leading 'a' from c0_string)
trim('a' from c0_string)
trim('a', c0_string)
extract(year from c0_date)
months_between(c0_date, c1_date, true)
c0_string and c0_boolean
c0_boolean or c0_string
null and null
"""
REFUSED = """
substring(c0_string for 2)
substring(c0_string, 1, 2, 3)
substring(c0_string in c1_string)
position(c0_string from 1)
position('a' in c0_string, 2)
position('a', c0_string, 2, 3)
overlay(c0_string from 2)
overlay(c0_string placing 'x', 2)
overlay(c0_string, 'x' from 2)
overlay(c0_string placing 'x' for 2)
overlay(c0_string placing 'x' from 2, 1)
trim(leading c0_string)
trim(both c0_string, 'a')
extract(year, c0_date)
extract('year' from c0_date)
equal_null()
months_between(c0_date, c1_date, 1)
soundex(make_dt_interval(c0_int))
soundex(make_ym_interval(c0_int))
c0_string and c1_string
c0_string or null
null and c0_string
"""


def calls() -> Iterator[str]:
    """Calls of each function with up to seven arguments, and with too many."""
    names = sorted(name for name in FUNCTIONS if name.isidentifier())
    for name in names:
        for count in range(8):
            for type_ in TYPES:
                yield f"{name}({', '.join([f'c0_{type_}'] * count)})"
    for call in CALLS:
        if re.match(r"\w+\(.*\)\Z", call):
            text = re.sub(r"\{(\w+)\}", r"c0_\1", call)
            yield from (f"{text[:-1]}, {more})" for more in MORE)


def is_local(sql: str) -> bool:
    """Returns True if an expression is compiled and needs no Spark."""
    expression = frame().compiled(sql)
    return expression is not None and expression.local


@pytest.mark.parametrize("sql", FORMS.strip().splitlines())
def test_each_form_of_call_is_computed_in_process(sql: str) -> None:
    assert is_local(sql)


@pytest.mark.parametrize("sql", REFUSED.strip().splitlines())
def test_call_refused_by_spark_is_not_computed_in_process(sql: str) -> None:
    assert not is_local(sql)


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_spark_accepts_each_call_computed_in_process(spark: Any) -> None:
    asked, forms = Asked(spark), FORMS.strip().splitlines()
    taken = [sql for sql in dict.fromkeys((*calls(), *forms)) if is_local(sql)]
    assert len(taken) > 1000
    assert {sql for sql in taken if asked.type(sql) is None} == set()
    assert {sql for sql in REFUSED.strip().splitlines() if asked.type(sql) is not None} == set()
