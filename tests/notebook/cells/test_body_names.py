"""Names in `%%dd` bodies: which of them become stages."""

from __future__ import annotations

import pytest

from nosync.define import bound_names


def names_of(source: str) -> list[str]:
    return list(dict.fromkeys(bound_names(compile(source, "<cell>", "exec"))))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a = 1", ["a"]),
        ("a, (b, *c) = x", ["a", "b", "c"]),
        ("a = b = x", ["a", "b"]),
        ("a: int = 1\na += 1", ["a"]),
        ("if x:\n    a = 1\nelse:\n    b = 2", ["a", "b"]),
        ("for i in y:\n    a = i\nelse:\n    b = 1", ["i", "a", "b"]),
        ("while x:\n    a = 1", ["a"]),
        ("with x as a, y as (b, c):\n    d = 1", ["a", "b", "c", "d"]),
        ("try:\n    a = 1\nexcept E as e:\n    b = 2\nfinally:\n    c = 3", ["a", "e", "b", "c"]),
        ("(a := f((b := 1)))", ["a", "b"]),
        ("x = [(a := i) for i in y]", ["a", "x"]),
        ("x = [i for i in y]", ["x"]),
        ("def f(a=(b := 1)):\n    c = 2", ["f", "b"]),
        ("class K(B):\n    c = 2", ["K"]),
        ("f = lambda a: (b := a)", ["f"]),
        ("import os.path, sys as s\nfrom x import y as z", ["os", "s", "z"]),
        (
            "match x:\n    case [a, *b]:\n        c = 1\n    case {'k': d, **e}:\n        pass",
            list("abcde"),
        ),
        ("a.b = 1\na[0] = 2\ndel a", []),
        ("_a = 1", ["_a"]),
        ("x = {(a := i): [(b := j) for j in k] for i in y}", ["a", "b", "x"]),
        ("x = (lambda: [(a := i) for i in y])", ["x"]),
        ("def f():\n    global g\n    g = 1", ["f"]),
        ("global g\ng = 1", ["g"]),
    ],
)
def test_bound_names_are_those_that_cell_would_bind(source: str, expected: list[str]) -> None:
    assert sorted(expected) == sorted(names_of(source))


def test_bound_names_are_in_order_of_first_binding() -> None:
    assert names_of("b = 1\na = 2\nb = 3") == ["b", "a"]
