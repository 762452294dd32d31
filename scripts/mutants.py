"""Mutants: small changes of the engine's source, read off its syntax tree, each in one place.

A mutant replaces one piece of text and keeps the number of lines, so that a line of it is the same
line of the source. What no test can be asked to notice is not changed: annotations, docstrings,
assertions, the wording of errors and warnings, arguments whose order means nothing, and the exact
value of a limit (a constant above 8, or one with a name in capitals).
"""

from __future__ import annotations

import ast
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path

SWAPPED = {
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Lt: ">=",
    ast.LtE: ">",
    ast.Gt: "<=",
    ast.GtE: "<",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
BOUNDARIES = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
SIGNS = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Is: "is",
    ast.IsNot: "is not",
    ast.In: "in",
    ast.NotIn: "not in",
}
KINDS = ("comparison", "boundary", "call", "part", "arguments", "condition", "constant")
UNORDERED = {"max", "min", "maximum", "minimum", "isinstance", "issubclass", "gcd", "lcm", "cast"}
CONSTANT_MAX = 8
ROOMS = (
    *("files", "rows", "expressions", "trace", "operators", "collections", "dataflow"),
    *("store", "spark", "session"),
)
Span = tuple[int, int, int, int]


@dataclass(frozen=True)
class Mutant:
    """One change: `before` at `span` (lines and bytes as in `ast`) becomes `after`."""

    file: str
    span: Span
    kind: str
    function: str
    statement: int
    before: str
    after: str

    @property
    def room(self) -> str:
        """The room of the module."""
        return self.file.split("/")[1].removesuffix(".py")

    @property
    def change(self) -> str:
        """The change in words, in one line."""
        before, after = (" ".join(text.split()) for text in (self.before, self.after))
        return f"{self.kind}: {before}  ->  {after or 'nothing'}"

    def apply(self, source: str) -> str:
        """The changed source, with as many lines."""
        lines = source.encode().splitlines(keepends=True)
        first, left, last, right = self.span
        head, tail = lines[first - 1][:left], lines[last - 1][right:]
        filled = self.after + "\n" * (last - first - self.after.count("\n"))
        if filled.endswith("\n") and not tail.strip():
            head, filled = head + self.after.encode(), "\n" * (last - first)
        lines[first - 1 : last] = [head + filled.encode() + tail]
        return b"".join(lines).decode()


def mutants(top: Path, package: str = "nosync_nb") -> list[Mutant]:
    """Every mutant of a package, in the order of its files and lines."""
    found = []
    for path in sorted((top / package).rglob("*.py")):
        found += of_source(path.read_text(), str(path.relative_to(top)))
    return found


def of_source(source: str, file: str) -> list[Mutant]:
    """Every mutant of one module."""
    walk = _Walk(source, file)
    walk.visit(ast.parse(source))
    return [m for m in walk.found if m.before != m.after]


def draw(top: Path, every: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """As many of each kind as there are, drawn by a seed; more draws of a seed begin alike.

    What changes elsewhere hardly ever draws others. What is no Python any more (`x[1] = 2` without
    its index) is drawn and dropped.
    """
    seen: Counter[str] = Counter()
    ranks: dict[Mutant, bytes] = {}
    for m in every:
        name = f"{seed} {m.file} {m.function} {m.kind} {m.before} {m.after}"
        seen[name] += 1
        ranks[m] = blake2b(f"{name} {seen[name]}".encode()).digest()
    ranked = sorted(every, key=ranks.__getitem__, reverse=True)
    piles = [[m for m in ranked if m.kind == kind] for kind in KINDS]
    drawn: list[Mutant] = []
    while len(drawn) < count and any(piles):
        turn = [pile.pop() for pile in piles if pile]
        drawn += [m for m in turn if _compiles(m.apply((top / m.file).read_text()))]
    return drawn[:count]


def _compiles(source: str) -> bool:
    try:
        with warnings.catch_warnings(action="ignore"):  # `is` beside a number
            compile(source, "mutant", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


class _Walk(ast.NodeVisitor):
    """Collects the changes of one module."""

    def __init__(self, source: str, file: str) -> None:
        self.file = file
        self.lines = source.encode().splitlines(keepends=True)
        self.found: list[Mutant] = []
        self.names: list[str] = []
        self.statement = 0

    def text(self, span: Span) -> str:
        first, left, last, right = span
        if first == last:
            return self.lines[first - 1][left:right].decode()
        whole = [self.lines[first - 1][left:], *self.lines[first : last - 1]]
        return b"".join([*whole, self.lines[last - 1][:right]]).decode()

    def add(self, kind: str, span: Span, after: str) -> None:
        name = ".".join(self.names)
        before = self.text(span)
        self.found.append(Mutant(self.file, span, kind, name, self.statement, before, after))

    def visit(self, node: ast.AST) -> None:
        """Visits what runs; a statement says where it begins."""
        if isinstance(node, ast.stmt):
            self.statement = node.lineno
        super().visit(node)

    def _named(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        self.names.append(node.name)
        for each in node.body:
            self.visit(each)
        self.names.pop()
        if not isinstance(node, ast.ClassDef):
            for default in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
                self.visit(default)

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _named  # noqa: N815

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """A value is changed, an annotation and a named limit are not."""
        if node.value is not None and not _is_limit(node.target, node.value):
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        """Likewise."""
        if not _is_limit(node.targets[0], node.value):
            self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        """What an error says is not changed."""

    def visit_Assert(self, node: ast.Assert) -> None:
        """An assertion is a test itself."""

    def visit_Expr(self, node: ast.Expr) -> None:
        """A call for its effect is left out."""
        if isinstance(node.value, ast.Call):
            self.add("call", _span(node), "pass")
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        """A condition is negated, but that of imports for types."""
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        self._negated(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        """A condition is negated."""
        self._negated(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        """A condition is negated."""
        self._negated(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        """A condition is negated."""
        for test in node.ifs:
            self._negated(test)
        self.generic_visit(node)

    def _negated(self, test: ast.expr) -> None:
        lone = isinstance(test, ast.Compare) and len(test.ops) == 1
        if not lone:  # else that is the swapped comparison
            self.add("condition", _span(test), f"(not ({self.text(_span(test))}))")

    def visit_Compare(self, node: ast.Compare) -> None:
        """A comparison is turned round, or takes or loses its bound."""
        parts = [node.left, *node.comparators]
        for number, sign in enumerate(node.ops):
            before, after = parts[number], parts[number + 1]
            span = _between(before, after)
            between = self.text(span)
            old = SIGNS[type(sign)]
            if between.count(old) != 1:
                continue
            self.add("comparison", span, between.replace(old, SWAPPED[type(sign)]))
            if type(sign) in BOUNDARIES:
                self.add("boundary", span, between.replace(old, BOUNDARIES[type(sign)]))
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        """One part is left out."""
        word = " and " if isinstance(node.op, ast.And) else " or "
        for number in range(len(node.values)):
            rest = [value for i, value in enumerate(node.values) if i != number]
            texts = [f"({self.text(_span(value))})" for value in rest]
            self.add(
                "part", _span(node), word.join(texts) if len(rest) == 1 else f"({word.join(texts)})"
            )
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """Two neighbours change places."""
        if _callee(node) in UNORDERED | {"warn"}:
            return
        plain = [a for a in node.args if not isinstance(a, ast.Starred)]
        for one, two in pairwise(plain):
            span = (*_span(one)[:2], *_span(two)[2:])
            middle = self.text(_between(one, two))
            first, second = self.text(_span(one)), self.text(_span(two))
            self.add("arguments", span, f"{second}{middle}{first}")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """A small number is one more and one less."""
        if type(node.value) is int and node.value <= CONSTANT_MAX:
            self.add("constant", _span(node), str(node.value + 1))
            self.add("constant", _span(node), f"({node.value - 1})")

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Text is not changed."""


def _span(node: ast.expr | ast.stmt) -> Span:
    return node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0


def _between(one: ast.expr, two: ast.expr) -> Span:
    return (*_span(one)[2:], *_span(two)[:2])


def _callee(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _is_limit(target: ast.expr, value: ast.expr) -> bool:
    """Whether a number gets a name in capitals."""
    capital = isinstance(target, ast.Name) and target.id.strip("_").isupper()
    numbers = (ast.Constant, ast.BinOp, ast.UnaryOp)
    return capital and isinstance(value, numbers)


def spans(source: str) -> Iterator[tuple[str, int, int]]:
    """The functions of a module by their dotted names, with their first and last lines."""

    def inside(node: ast.AST, names: tuple[str, ...]) -> Iterator[tuple[str, int, int]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                here = (*names, child.name)
                if not isinstance(child, ast.ClassDef):
                    yield ".".join(here), child.body[0].lineno, child.end_lineno or 0
                yield from inside(child, here)
            else:
                yield from inside(child, names)

    yield from inside(ast.parse(source), ())
