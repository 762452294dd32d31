"""One word, one thing: no class name stands for two classes, and `found` is what a search gives.

The number below may only go down: who lowers it lowers it here too.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

ENGINE = Path(__file__).resolve().parents[2] / "nosync_nb"

FOUND_MAX = 60
"""Uses of the name `found`, which says nothing of what it holds."""


def trees() -> list[ast.Module]:
    return [ast.parse(path.read_text()) for path in sorted(ENGINE.rglob("*.py"))]


def named(tree: ast.Module) -> Counter[str]:
    """How often each variable or parameter is written in a module."""
    names = (
        node.id if isinstance(node, ast.Name) else node.arg
        for node in ast.walk(tree)
        if isinstance(node, ast.Name | ast.arg | ast.keyword)
    )
    return Counter(name for name in names if name)


def test_no_class_name_stands_for_two_classes() -> None:
    names = Counter(
        node.name for tree in trees() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    )
    assert [name for name, number in names.items() if number > 1] == []


def test_what_is_found_was_looked_for() -> None:
    counted = sum((named(tree) for tree in trees()), Counter[str]())
    assert counted["found"] <= FOUND_MAX
