"""The relational algebra of a query: what SQL text becomes before it is a definition.

Each column of each relation has a number of its own, so that names play no part after resolution
and a relation that depends on columns of an outer one (a correlated subquery) is seen by the
numbers that it uses and does not produce. A relation is a value: rewriting makes new ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import NamedTuple

from nosync_nb.collections.sql.grammar import NOWHERE, TextSpan

Column = int
"""The number of a column."""


class Numbers:
    """Numbers new columns."""

    def __init__(self) -> None:
        self._next = count(1)

    def new(self) -> Column:
        """Returns a number that no column has."""
        return next(self._next)


_STRING_OR_SPACE = re.compile(
    r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`)|--[^\n]*|/\*.*?\*/|\s+""", re.DOTALL
)


def single_spaced(text: str) -> str:
    """Returns an expression without comments and with single spaces; its strings do not change."""
    return _STRING_OR_SPACE.sub(lambda found: found[1] or " ", text)


def _normal(text: str) -> str:
    """Returns an expression in lower case, but with its strings as they are."""
    parts = re.split(r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`)""", text)
    return "".join(each if i % 2 else each.lower() for i, each in enumerate(parts)).strip()


class Inequality(NamedTuple):
    """An inequality of an expression with another one and a constant: `left sign right + shift`.

    Attributes:
        sign: `<`, `<=`, `>`, `>=` or `<>`.
        shift: a numeric literal; empty without one.
    """

    left: Scalar
    sign: str
    right: Scalar
    shift: str = ""


@dataclass(frozen=True)
class Scalar:
    """An expression over columns: the user's text with columns in place of their names.

    Attributes:
        pieces: text and columns, in order.
        sides: the operands, if it is an equality.
        null_safe: True if the equality is `<=>`.
        span: its position in the statement.
        comparisons: the comparisons that are true if it is.
        is_compared: True if it is true whenever these comparisons are.
    """

    pieces: tuple[str | Column, ...]
    span: TextSpan = NOWHERE
    sides: tuple[Scalar, Scalar] | None = None
    null_safe: bool = False
    comparisons: tuple[Inequality, ...] = ()
    is_compared: bool = False

    @property
    def columns(self) -> frozenset[Column]:
        """The columns that it reads."""
        return frozenset(each for each in self.pieces if isinstance(each, int))

    @property
    def column(self) -> Column | None:
        """The column, if it is nothing else."""
        only = self.pieces[0] if len(self.pieces) == 1 else None
        return only if isinstance(only, int) else None

    def key(self) -> tuple[str | Column, ...]:
        """Returns a value that is equal for equal texts, whatever their spaces and case."""
        return tuple(each if isinstance(each, int) else _normal(each) for each in self.pieces)

    def mapped(self, columns: Mapping[Column, Column]) -> Scalar:
        """Returns it with other columns in place of some."""
        if not self.columns & columns.keys():
            return self
        sides = self.sides and (self.sides[0].mapped(columns), self.sides[1].mapped(columns))
        pieces = tuple(columns.get(p, p) if isinstance(p, int) else p for p in self.pieces)
        comparisons = tuple(
            each._replace(left=each.left.mapped(columns), right=each.right.mapped(columns))
            for each in self.comparisons
        )
        return replace(self, pieces=pieces, sides=sides, comparisons=comparisons)


def column(number: Column) -> Scalar:
    """Returns a column as an expression."""
    return Scalar((number,))


def equality(a: Scalar, b: Scalar, *, null_safe: bool = False) -> Scalar:
    """Returns the condition that two expressions are equal."""
    sign = " <=> " if null_safe else " = "
    pieces = ("(", *a.pieces, ")", sign, "(", *b.pieces, ")")
    return Scalar(pieces, a.span, (a, b), null_safe)


def inequality(a: Scalar, sign: str, b: Scalar) -> Scalar:
    """Returns the condition that an expression is `<`, `<=`, `>`, `>=` or `<>` another one."""
    pieces = ("(", *a.pieces, f") {sign} (", *b.pieces, ")")
    return Scalar(pieces, a.span, comparisons=(Inequality(a, sign, b),), is_compared=True)


def is_null(value: Scalar) -> Scalar:
    """Returns the condition that an expression is null."""
    return Scalar(("((", *value.pieces, ") IS NULL)"), value.span)


class Output(NamedTuple):
    """A column that an operator computes."""

    column: Column
    value: Scalar


class Named(NamedTuple):
    """A column with the name under which its relation shows it."""

    column: Column
    name: str


@dataclass(frozen=True, eq=False)
class Relation:
    """An operator over relations.

    Attributes:
        columns: the columns that it returns.
    """

    columns: tuple[Column, ...]

    @property
    def inputs(self) -> tuple[Relation, ...]:
        """The relations that it reads."""
        return ()

    @property
    def scalars(self) -> Iterable[Scalar]:
        """Its own expressions."""
        return ()


class TimePoint(NamedTuple):
    """The point in time of `t VERSION AS OF 3` or `t TIMESTAMP AS OF '2026-01-01'`.

    Attributes:
        kind: "version" or "timestamp".
        value: the epoch, or its label, of a version; the text of a timestamp's expression.
        span: the part of the statement that has the value.
    """

    kind: str
    value: int | str
    span: TextSpan


@dataclass(frozen=True, eq=False)
class LogicalScan(Relation):
    """An input or a stage, with the names of its columns.

    Attributes:
        at: the point in time whose rows are read once; None for the current and later rows.
    """

    name: str
    named: tuple[Named, ...]
    at: TimePoint | None = None


@dataclass(frozen=True, eq=False)
class LogicalSingle(Relation):
    """One row without columns: what a SELECT without FROM reads."""


@dataclass(frozen=True, eq=False)
class LogicalValues(Relation):
    """Constant rows."""

    rows: tuple[tuple[Scalar, ...], ...]


@dataclass(frozen=True, eq=False)
class _Unary(Relation):
    """An operator over one relation."""

    source: Relation

    @property
    def inputs(self) -> tuple[Relation, ...]:
        return (self.source,)


@dataclass(frozen=True, eq=False)
class LogicalProject(_Unary):
    """Computes columns."""

    outputs: tuple[Output, ...]

    @property
    def scalars(self) -> Iterable[Scalar]:
        return (each.value for each in self.outputs)


@dataclass(frozen=True, eq=False)
class LogicalFilter(_Unary):
    """Retains the rows for which a condition is true."""

    condition: Scalar

    @property
    def scalars(self) -> Iterable[Scalar]:
        return (self.condition,)


@dataclass(frozen=True, eq=False)
class LogicalDistinct(_Unary):
    """Each row once."""


@dataclass(frozen=True, eq=False)
class LogicalAggregate(_Unary):
    """One row for each group; one row in all if there are no keys.

    Attributes:
        keys: the columns that identify a group.
        calls: the calls of aggregate functions.
    """

    keys: tuple[Column, ...]
    calls: tuple[Output, ...]

    @property
    def scalars(self) -> Iterable[Scalar]:
        return (each.value for each in self.calls)


class RowGenerator(NamedTuple):
    """The call of a function that makes several rows of one.

    Attributes:
        function: "explode", "posexplode" or "inline".
        argument: an array or a map.
        columns: those that it adds.
        is_outer: True if a row without elements results in a row with nulls.
    """

    function: str
    argument: Scalar
    columns: tuple[Column, ...]
    is_outer: bool


@dataclass(frozen=True, eq=False)
class LogicalGenerate(_Unary):
    """Repeats each row for every row that a generator makes of it."""

    generator: RowGenerator

    @property
    def scalars(self) -> Iterable[Scalar]:
        return (self.generator.argument,)


class OrderBy(NamedTuple):
    """One term of an order."""

    column: Column
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, eq=False)
class LogicalTop(_Unary):
    """The first rows of each group in an order.

    Attributes:
        ties: True for all rows with a rank of at most `limit`, which may be more rows.
    """

    groups: tuple[Column, ...]
    order: tuple[OrderBy, ...]
    limit: int
    offset: int
    ties: bool = False


class WindowFunction(NamedTuple):
    """A window function.

    Attributes:
        column: its result.
        function: its name in lower case; "aggregate" for one, whose call is `call`.
        arguments: columns.
        frame: the unit and the bounds, see operators/windows/calls.py; None without a frame.
    """

    column: Column
    function: str
    arguments: tuple[Column, ...] = ()
    n: int = 1
    skips_nulls: bool = False
    frame: tuple[str, int | str | None, int | str | None] | None = None
    call: Scalar | None = None


@dataclass(frozen=True, eq=False)
class LogicalWindow(_Unary):
    """Appends functions of the rows around a row, in the order of its group."""

    groups: tuple[Column, ...]
    order: tuple[OrderBy, ...]
    functions: tuple[WindowFunction, ...]

    @property
    def scalars(self) -> Iterable[Scalar]:
        used = [*self.groups, *(t.column for t in self.order)]
        used += [c for f in self.functions for c in f.arguments]
        return (column(each) for each in used)


@dataclass(frozen=True, eq=False)
class _Binary(Relation):
    """An operator over two relations."""

    left: Relation
    right: Relation

    @property
    def inputs(self) -> tuple[Relation, ...]:
        return (self.left, self.right)


@dataclass(frozen=True, eq=False)
class LogicalJoin(_Binary):
    """A join: the right relation may use columns of the left one until it is unnested.

    Attributes:
        kind: "inner", "left", "right", "full", "semi" or "anti"; "mark" adds a column that says
            whether a left row has a match; "single" is "left", for a right side that has at most
            one match, and an error if it has more.
        conditions: all must be true.
        mark: the column that "mark" adds.
    """

    kind: str
    conditions: tuple[Scalar, ...]
    mark: Column = 0

    @property
    def scalars(self) -> Iterable[Scalar]:
        return self.conditions


@dataclass(frozen=True, eq=False)
class LogicalSetOperation(_Binary):
    """UNION ALL, EXCEPT ALL or INTERSECT ALL: the columns correspond by position."""

    kind: str


@dataclass(frozen=True, eq=False)
class LogicalVariable(_Unary):
    """The rows of a recursive query so far, in its step; `source` is the first query."""


@dataclass(frozen=True, eq=False)
class LogicalRecursion(_Binary):
    """The first query (left), and all that its repeated step (right) makes of it.

    Attributes:
        is_distinct: True if each row is in the result once.
    """

    is_distinct: bool


def walk(relation: Relation) -> Iterable[Relation]:
    """Yields a relation and all below it, each once, inputs first."""
    seen: set[int] = set()
    waiting = [(relation, False)]
    while waiting:
        each, below = waiting.pop()
        if below:
            yield each
        elif id(each) not in seen:
            seen.add(id(each))
            waiting.append((each, True))
            waiting += [(i, False) for i in reversed(each.inputs)]


def free_columns(relation: Relation) -> frozenset[Column]:
    """Returns the columns that a relation uses and no relation below it produces."""
    used: set[Column] = set()
    produced: set[Column] = set()
    for each in walk(relation):
        produced.update(each.columns)
        for scalar in each.scalars:
            used |= scalar.columns
        if isinstance(each, LogicalAggregate):
            used.update(each.keys)
        if isinstance(each, LogicalTop):
            used.update(each.groups)
            used.update(term.column for term in each.order)
    return frozenset(used - produced)


def with_inputs(relation: Relation, inputs: Sequence[Relation]) -> Relation:
    """Returns a relation over other inputs; the same one if they did not change.

    An operator whose inputs correspond by position reads the columns that it has read before.
    """
    if all(a is b for a, b in zip(inputs, relation.inputs, strict=True)):
        return relation
    if isinstance(relation, LogicalSetOperation | LogicalVariable | LogicalRecursion):
        pairs = zip(inputs, relation.inputs, strict=True)
        inputs = [with_columns(made, before.columns) for made, before in pairs]
    if isinstance(relation, _Unary):
        return replace(relation, source=inputs[0])
    assert isinstance(relation, _Binary)
    return replace(relation, left=inputs[0], right=inputs[1])


def with_columns(relation: Relation, columns: tuple[Column, ...]) -> Relation:
    """Returns a relation with some of its columns, in this order."""
    if relation.columns == columns:
        return relation
    return LogicalProject(columns, relation, tuple(Output(c, column(c)) for c in columns))


def rebuilt(relation: Relation, change: Callable[[Relation], Relation]) -> Relation:
    """Returns a relation with each operator, from the inputs up, replaced by `change(operator)`."""
    made: dict[int, Relation] = {}
    for each in walk(relation):
        made[id(each)] = change(with_inputs(each, [made[id(i)] for i in each.inputs]))
    return made[id(relation)]
