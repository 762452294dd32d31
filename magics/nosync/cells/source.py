"""Analyses the source of a cell: the names that it binds, its imports, and a descriptive line.

Pure: no code is run. If a cell is not valid Python, its names are unknown.
"""

from __future__ import annotations

import ast
import re
import symtable
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

LINE_MAX = 44

_SECRET = re.compile(
    r"pass|pwd|(?<![a-z])pw(?![a-z])|secret|token|credential|bearer|cookie|private|(?<![a-z])"
    r"(?:auth[a-z]*|api|access|sas|pin|dsn|(?:[a-z0-9]+_)?keys?)(?![a-z])|apikey|://[^/\s]*@",
    re.IGNORECASE,
)
"""Matches names that suggest a secret, and lines that may contain one."""

_INSERT = re.compile(r"\.insert\(|\bINSERT\s+INTO\s", re.IGNORECASE)
"""Matches calls and SQL statements that insert rows."""

_PLAIN = re.compile(r"\s*(#|%|!|import\s|from\s|$)")
"""Matches lines that do not describe a cell: comments, magics, imports and empty lines."""


class CellSource(NamedTuple):
    """The facts that the source of a cell shows.

    Attributes:
        text: the source.
        bound: the names that the cell binds at its top level.
        loops: the bound names that are only loop variables.
        imports: the names that only imports bind, each with a statement that imports it again.
        names: all names in the code.
        repeatable: True if the source has no `insert`, in Python or SQL, or mentions `once`:
            running the cell again inserts no row twice.
    """

    text: str
    bound: frozenset[str] = frozenset()
    loops: frozenset[str] = frozenset()
    imports: Mapping[str, str] = {}
    names: frozenset[str] = frozenset()
    repeatable: bool = True

    def line(self, names: Collection[str] = ()) -> str:
        """Returns the line that describes the cell, cut to 44 characters.

        This is the first line that contains one of the `names`; without one, the first that is
        not a comment, magic or import. Empty if the line or a name suggests a secret.
        """
        lines = [line for line in self.text.splitlines() if not _PLAIN.match(line)]
        if names:
            word = re.compile(rf"\b(?:{'|'.join(map(re.escape, names))})\b")
            lines = [line for line in lines if word.search(line)] or lines
        line = lines[0].strip() if lines else self.text.strip().partition("\n")[0]
        if _SECRET.search(line) or any(map(_SECRET.search, names)):
            return ""
        return line if len(line) <= LINE_MAX else line[: LINE_MAX - 1] + "…"

    def mentions(self, name: str) -> bool:
        """Returns True if a name occurs in the cell as a word, and not as an attribute."""
        return re.search(rf"(?<![\w.]){re.escape(name)}\b", self.text) is not None


class _Scoped(ast.NodeTransformer):
    """Replaces comprehensions by generators, so that their variables are not names of the cell.

    Since Python 3.12, the symbol table of a module includes the variables of its comprehensions.
    """

    def visit(self, node: ast.AST) -> Any:
        """Returns the node with generators in place of comprehensions."""
        self.generic_visit(node)
        match node:
            case ast.ListComp(elt=each) | ast.SetComp(elt=each):
                return ast.GeneratorExp(each, node.generators)
            case ast.DictComp(key=key, value=value):
                return ast.GeneratorExp(ast.Tuple([key, value], ast.Load()), node.generators)
        return node


def read_cell(source: str, transform: Callable[[str], str]) -> CellSource:
    """Analyses the source of a cell.

    Args:
        transform: turns IPython's own syntax into Python.
    """
    body = source
    if source.lstrip().startswith("%%"):  # the body of most cell magics is code
        body = source.lstrip().partition("\n")[2]
    repeatable = not _INSERT.search(body) or "once" in body
    try:
        code = transform(body)
        tree = ast.parse(code)
        scoped = ast.unparse(_Scoped().visit(ast.parse(code)))
        table = symtable.symtable(scoped, "<cell>", "exec")
    except (SyntaxError, ValueError, RecursionError):
        return CellSource(source, repeatable=repeatable)
    bound = frozenset(
        each.get_name() for each in table.get_symbols() if each.is_assigned() or each.is_imported()
    )
    walked, stored = _stored(tree)
    again = walked | stored  # an import does not restore these names
    imports = {name: text for name, text in _imports(tree) if name not in again}
    names = frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    return CellSource(source, bound, frozenset(walked - stored), imports, names, repeatable)


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yields each name that a top-level statement imports, with an import of this name alone."""
    for node in tree.body:
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        for each in node.names:
            name = (each.asname or each.name).partition(".")[0]
            if each.name == "*" or getattr(node, "module", "") == "__future__":
                continue
            if isinstance(node, ast.Import):
                yield name, ast.unparse(ast.Import([each]))
            else:
                yield name, ast.unparse(ast.ImportFrom(node.module, [each], node.level))


def _stored(tree: ast.Module) -> tuple[set[str], set[str]]:
    """Returns the variables of top-level loops, and the names that are bound in other ways.

    Imports are not included.
    """
    walked: set[str] = set()
    stored: set[str] = set()
    todo: list[ast.AST] = list(tree.body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            stored.add(node.name)
            continue
        if isinstance(node, ast.For):
            walked |= {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}
            todo += [*node.body, *node.orelse]
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            stored.add(node.id)
        todo += ast.iter_child_nodes(node)
    return walked, stored


def is_import(text: str) -> bool:
    """Returns True if a statement imports one name and does nothing else."""
    try:
        (node,) = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError):
        return False
    return isinstance(node, ast.Import | ast.ImportFrom) and len(node.names) == 1
