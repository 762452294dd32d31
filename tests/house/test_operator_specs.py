"""Operator specs: each word of collections and plans has one.

The properties of an operator that the engine uses are declared beside its kernel. A class test of
an operator in another package repeats such a property; the permitted ones are listed, and their
number may only go down.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from nosync_nb.operators import base
from nosync_nb.operators.registry import SPECS

ENGINE = Path(__file__).resolve().parents[2] / "nosync_nb"
WRITERS = {"then", "_apply", "_combine", "Definition"}
"""The calls in collections whose first argument, if a text, is an operator word."""

ABOVE = ("collections", "dataflow", "store", "spark", "session")
KNOWN = {
    "dataflow/runtime/runner.py": 1,  # a row-wise operator runs when its change is asked for
    "session/writes/determinism_check.py": 2,  # the operators inside a loop are checked too
    "spark/execution/bulk_run.py": 1,  # a row-wise operator is one with what reads it
    "spark/execution/placement.py": 1,  # likewise
}
"""Class tests of operators outside of their room; fewer are welcome."""


def texts_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def words(tree: ast.AST) -> Iterator[str]:
    """The operator words that a module writes in definitions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and name_of(node.func) in WRITERS:
            word = node.args[0]
            if isinstance(word, ast.Constant) and isinstance(word.value, str):
                yield word.value


def name_of(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def classes() -> set[str]:
    """The names of all operator classes and row-wise pieces."""
    found = {base.Operator, base.RowPiece}
    for each in list(found):
        waiting = [each]
        while waiting:
            below = waiting.pop().__subclasses__()
            waiting += below
            found.update(below)
    return {each.__name__ for each in found}


def class_tests(tree: ast.AST, asked: set[str]) -> int:
    """The number of class tests in a module."""
    count = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and name_of(node.func) == "isinstance":
            count += any(name_of(each) in asked for each in ast.walk(node.args[1]) if is_name(each))
        elif isinstance(node, ast.MatchClass):
            count += name_of(node.cls) in asked
        elif isinstance(node, ast.Compare):  # type(operator) is Join
            count += any(is_name(each) and name_of(each) in asked for each in node.comparators)
    return count


def is_name(node: ast.AST) -> bool:
    """True for a name; those of sqlglot's syntax trees, `exp.Join`, are no operators."""
    if isinstance(node, ast.Attribute):
        return not (isinstance(node.value, ast.Name) and node.value.id == "exp")
    return isinstance(node, ast.Name)


def test_every_operator_word_has_spec() -> None:
    written = {
        word
        for room in ("collections", "dataflow")
        for path in (ENGINE / room).rglob("*.py")
        for word in words(texts_of(path))
    }
    compiled = {"ref", "iterate", "variable"}  # the compiler handles these itself
    assert written == SPECS.keys() | compiled


@pytest.mark.parametrize("op", SPECS)
def test_spec_is_complete(op: str) -> None:
    spec = SPECS[op]
    assert spec.op == op
    assert (spec.build is None) != (spec.piece is None)
    for call, count in ((spec.fit, 3), (spec.build or spec.piece, 2), (spec.expressions, 1)):
        assert call is not None
        assert len(inspect.signature(call).parameters) == count


def test_no_other_room_tests_class_of_operator() -> None:
    asked = classes()
    assert {"Join", "Aggregate", "Linear", "Filter", "Loop", "MemoizedMap"} <= asked
    counts = {
        str(path.relative_to(ENGINE)): class_tests(texts_of(path), asked)
        for room in ABOVE
        for path in (ENGINE / room).rglob("*.py")
    }
    assert {path: count for path, count in counts.items() if count} == KNOWN


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("isinstance(node.operator, Join)", 1),
        ("isinstance(operator, operators.Linear | Concat)", 1),
        ("isinstance(piece, (Filter, Select))", 1),
        ("type(operator) is Join", 1),
        ("match operator:\n    case Join(): pass", 1),
        ("isinstance(batch, Batch)", 0),
        ("isinstance(tree, exp.Join)", 0),
        ("Join(left, right)", 0),
    ],
)
def test_class_tests_are_counted(text: str, count: int) -> None:
    assert class_tests(ast.parse(text), classes()) == count
