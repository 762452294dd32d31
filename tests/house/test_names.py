"""Class names: no name stands for two classes, and messages name the package that users import."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

ENGINE = Path(__file__).resolve().parents[2] / "nosync_nb"


def trees() -> list[ast.Module]:
    return [ast.parse(path.read_text()) for path in sorted(ENGINE.rglob("*.py"))]


IMPORTED = re.compile(r"nosync_nb(\.\w+)*\.?|nosync_nb-|.*python -m nosync_nb\.\w+.*", re.DOTALL)
"""Texts that may name the engine's package: imports, commands, and one file."""


def texts(tree: ast.Module) -> set[str]:
    """The texts of a module without its docstrings."""
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return {c.value for c in constants if isinstance(c.value, str) and id(c) not in prose}


def test_messages_name_public_package() -> None:
    top = ENGINE.parent
    files = [p for room in ("nosync_nb", "magics", "widgets") for p in (top / room).rglob("*.py")]
    sources = {path: path.read_text() for path in sorted(files)}
    assert len(sources) > 200
    named = [
        f"{path.relative_to(top)}: {text}"
        for path, source in sources.items()
        if re.search("[\"'].*nosync_nb", source)
        for text in texts(ast.parse(source))
        if "nosync_nb" in text and not IMPORTED.fullmatch(text)
    ]
    assert named == []


def test_class_names_are_unique() -> None:
    names = Counter(
        node.name for tree in trees() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    )
    assert [name for name, number in names.items() if number > 1] == []
