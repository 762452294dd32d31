"""Regular expressions and `like`: which patterns are matched in process."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nosync_nb import rows
from nosync_nb.expressions import compile_expression
from nosync_nb.rows import Schema

_TEXT = Schema.parse("x string")
EXPONENTIAL = [
    "(a+)+$", "^(a+)+$", "(a+b?)+c", "(a|ab|b)+$", "(x+x+)+y", "((a{1,3}){1,3})+x",
    "((?:a|aa){2})+x", r"^(\w+\s?)*$", "([a-z0-9]+[-_]?)+x", r"^(([a-z])+.)+[A-Z]([a-z])+$",
    "(?=(a+)+$)a", "(?:(a{1,2000}){1,2000})b", "(?i)(?:a[bA]?|A)+!", "(é+|[à-ÿ]x?)+!",
]  # fmt: skip
"""Patterns that may take exponential time."""
HARMLESS = [
    "^[a-z]+$", r"^(\d+\.)+\d+$", "([a-z]+,)*", r"(\s+\w+)*", r'(?:[^"\\]|\\.)*"', "(a{1,3}){2}",
    r"(\d{1,3}\.){3}\d{1,3}", r"^([a-zA-Z0-9._-]+)@(([a-zA-Z0-9-]+\.)+)([a-zA-Z]{2,})$",
    "(foo|bar|baz)+", "(a|b)+$", "(a?b?c)+d", r"^(-?\d+(,\d{3})*)$", r"(\w+\.)*\w+@",
    "(([01]?[0-9]|2[0-3]):)+",
]  # fmt: skip


def expression(pattern: str) -> Any:
    literal = pattern.replace("\\", "\\\\").replace("'", "\\'")
    return compile_expression(f"x rlike '{literal}'", _TEXT, types=lambda *_: ["boolean"])


@pytest.mark.parametrize("pattern", EXPONENTIAL)
def test_pattern_with_exponential_time_is_left_to_spark(pattern: str) -> None:
    """The interpreter is blocked while it matches, so Ctrl-C would not work."""
    compiled = expression(pattern)
    assert not compiled.local
    assert "exponentially many ways" in compiled.why


@pytest.mark.parametrize("pattern", HARMLESS)
def test_pattern_with_linear_time_is_matched_in_process(pattern: str) -> None:
    compiled = expression(pattern)
    assert compiled.local, compiled.why
    texts = [letter * 400 + end for letter in "a1.:\\," for end in ("", "!", "\n.")]
    assert len(compiled.evaluate([rows.objects(texts)], len(texts))) == len(texts)


def test_every_regex_function_checks_its_pattern() -> None:
    for call in (
        "regexp(x, '{}')",
        "regexp_like(x, '{}')",
        "regexp_count(x, '{}')",
        "regexp_instr(x, '{}')",
        "regexp_substr(x, '{}')",
        "regexp_extract(x, '{}', 1)",
        "regexp_replace(x, '{}', '')",
        "split(x, '{}')",
    ):
        for pattern, local in (("(a+)+b", False), ("(a+)b", True)):
            sql = call.format(pattern)
            compiled = compile_expression(sql, _TEXT, types=lambda *_: ["string"])
            assert (sql, compiled.local) == (sql, local)  # fmt: skip


def matches(pattern: str, text: str) -> bool:
    """Matches `like` by its definition."""
    if not pattern:
        return not text
    if pattern[0] == "%":
        return any(matches(pattern[1:], text[i:]) for i in range(len(text) + 1))
    return bool(text) and pattern[0] in ("_", text[0]) and matches(pattern[1:], text[1:])


@given(st.text("ab%_", max_size=7), st.lists(st.text("ab\n", max_size=8), min_size=1))
def test_like_matches_by_its_definition(pattern: str, texts: list[str]) -> None:
    compiled = compile_expression(f"x like '{pattern}'", _TEXT)
    found = rows.to_pylist(compiled.evaluate([rows.objects(texts)], len(texts)), "boolean")
    assert found == [matches(pattern, text) for text in texts]


def test_like_is_linear_for_many_wildcards() -> None:
    """A backtracking match would take 4000 ** 12 steps for twelve wildcards."""
    pattern, texts = "%a" * 12 + "%b", ["a" * 4000, "a" * 4000 + "b"]
    for sql in (f"x like '{pattern}'", f"x like y || '{pattern}'", f"x ilike '{pattern}'"):
        compiled = compile_expression(sql, Schema.parse("x string, y string"))
        columns = [rows.objects(texts), rows.objects(["", ""])]
        assert rows.to_pylist(compiled.evaluate(columns, 2), "boolean") == [False, True]
