"""SQL functions at the edges of types: Spark's answers for every function and type.

The answers are those of Spark, in tests/data/edge_answers.json.xz.
tests/support/sql_cases/edge_cases.py asks Spark for them.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from soak import tried
from sql_cases.edge_cases import (
    FAILS,
    OWN_WORLD,
    RAISES,
    REFUSED,
    Answer,
    Edge,
    asked,
    compiled,
    frame,
    here,
    plain,
    recorded,
)
from sql_cases.function_cases import MATHEMATICS

from nosync_nb import rows
from nosync_nb.expressions.functions.registry import FUNCTIONS, OPERATORS
from nosync_nb.rows import SMALL
from nosync_nb.rows.arrow import to_python_values

_NO_NUMBER = "a literal that is no number is an error in Spark, also beside null"
KNOWN = {
    "nullif('%5d', x_int)": _NO_NUMBER,
    "'%5d' < x_int": _NO_NUMBER,
    "'%5d' <> x_int": _NO_NUMBER,
}
"""Intended differences from Spark, with the reason."""


def alike(edge: Edge, ours: str | None, theirs: str | None) -> bool:
    """Equal, except for the last places of some functions of Java."""
    if ours == theirs:
        return True
    if edge.name not in MATHEMATICS or None in (ours, theirs) or RAISES in (ours, theirs):
        return False
    a, b = float(str(ours)), float(str(theirs))
    return abs(a - b) <= 2 * np.spacing(abs(b))


def differences(some: list[tuple[Edge, Answer]], answer: Any) -> dict[str, str]:
    """The expressions that differ from Spark, with the first row and both answers."""
    found: dict[str, str] = {}
    for edge, (type_, theirs) in some:
        own, ours = answer(edge)
        if type_ == REFUSED:
            found[edge.sql] = "Spark refuses it"
        elif type_ == FAILS:
            if RAISES not in ours:
                found[edge.sql] = "Spark fails before it reads a row, and no row fails here"
        elif own != type_:
            found[edge.sql] = f"of type {own}, in Spark {type_}"
        else:
            for place, a, b in zip(edge.places, ours, theirs, strict=True):
                if not alike(edge, a, b):
                    found[edge.sql] = f"row {row(edge, place)}: here {a}, in Spark {b}"
                    break
    return {sql: told for sql, told in found.items() if sql not in KNOWN}


def row(edge: Edge, place: int) -> dict[str, Any]:
    schema, columns = frame()
    e = compiled(edge.sql)
    assert e is not None
    return {
        schema.names[c]: to_python_values(
            rows.slice_(columns[c], place, place + 1), schema.types[c]
        )[0]
        for c in e.columns
    }


def test_every_function_has_recorded_answers_of_spark() -> None:
    named = {edge.name for edge, _ in recorded()}
    assert {*FUNCTIONS, *OPERATORS} - OWN_WORLD - named == set(), (
        "run tests/support/sql_cases/edge_cases.py, which asks Spark"
    )
    assert [edge.sql for edge, _ in recorded() if compiled(edge.sql) is None] == []


def test_every_function_gives_answers_of_spark_at_edges() -> None:
    assert differences(recorded(), here) == {}


def test_few_rows_without_nulls_give_same_answers() -> None:
    """Another form of the expression computes them."""
    schema, columns = frame()

    def few(edge: Edge) -> Answer:
        e, (type_, answers) = compiled(edge.sql), here(edge)
        assert e is not None
        read = {c: to_python_values(columns[c], schema.types[c]) for c in e.columns}
        whole = [
            k
            for k, place in enumerate(edge.places)
            if answers[k] != RAISES and all(read[c][place] is not None for c in read)
        ]
        for start in range(0, len(whole), 7):
            some = whole[start : start + 7]
            at = np.array([edge.places[k] for k in some])
            part = [rows.take(c, at) if n in e.columns else c[:0] for n, c in enumerate(columns)]
            for k, value in zip(
                some, to_python_values(e.evaluate(part, len(at)), e.type), strict=True
            ):
                answers[k] = plain(value)
        return type_, answers

    assert differences(recorded()[:: tried(3, 1)], few) == {}


def test_many_rows_give_same_answers() -> None:
    """Text and nested values of many rows have another form."""
    columns = frame()[1]

    def many(edge: Edge) -> Answer:
        e, (type_, answers) = compiled(edge.sql), here(edge)
        assert e is not None
        fine = [k for k, answer in enumerate(answers) if answer != RAISES]
        if not fine:
            return type_, answers
        copies = SMALL // len(fine) + 1
        at = np.tile(np.array([edge.places[k] for k in fine]), copies)
        part = [rows.take(c, at) if n in e.columns else c for n, c in enumerate(columns)]
        values = to_python_values(e.evaluate(part, len(at)), e.type)
        for k, value in zip(fine, values[-len(fine) :], strict=True):
            answers[k] = plain(value)
        return type_, answers

    assert differences(recorded()[:: tried(11, 1)], many) == {}


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_recorded_answers_are_those_of_this_spark(spark: Any) -> None:
    some = recorded()
    if tried(1, 0):
        some = random.Random(1).sample(some, 40)
    answers = asked(spark, [edge for edge, _ in some])
    changed = {edge.sql: (old, answers[edge.sql]) for edge, old in some}
    assert {sql: pair for sql, pair in changed.items() if pair[0] != pair[1]} == {}
