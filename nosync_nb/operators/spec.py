"""What an operator is to the rest of the engine, by its word in definitions.

An operator has one home: its file holds the kernel and its `Spec`, and `specs.SPECS` lists them.
A spec says how the kernel is built from one part of a definition, and how that part fits columns
that came or went: which it needs, and which it passes on. What is asked of a kernel once it is
there (the columns it uses, what it is in a loop, what an audit asks) are methods of
`nosync_nb.operators.base.Operator`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from nosync_nb.errors import NosyncError
from nosync_nb.expressions import Expression, Types, compile_expression, of_params
from nosync_nb.operators.base import Operator, RowPiece
from nosync_nb.rows import Schema


class DefinitionPart(Protocol):
    """One operator of a definition; see `nosync_nb.collections.definition.Definition`."""

    @property
    def op(self) -> str:
        """The operator's word."""

    @property
    def schema(self) -> Schema:
        """The columns of the output."""

    @property
    def inputs(self) -> Sequence[DefinitionPart]:
        """What it reads."""

    @property
    def params(self) -> Mapping[str, Any]:
        """Its arguments."""

    @property
    def functions(self) -> Sequence[Callable[..., Any]]:
        """The user's functions among its arguments."""


class LostColumn(NamedTuple):
    """A column that is not what it was: why, and whether it is there with another type."""

    why: str
    retyped: bool


class LostColumnError(Exception):
    """A lost column is used; says which."""


class RemainingColumns(NamedTuple):
    """What is left of the columns of an input.

    Attributes:
        places: where the columns that are left were before.
        lost: those that are not there any more, by place.
    """

    places: Sequence[int]
    lost: Mapping[int, LostColumn]

    def moved(self, places: Iterable[int]) -> list[int]:
        """Where columns are now.

        Raises:
            UsedError: if one of them is lost.
        """
        now = {place: i for i, place in enumerate(self.places)}
        for place in places:
            if place in self.lost:
                raise LostColumnError(self.lost[place].why)
        return [now[place] for place in places]


Key = tuple[int, ...] | None
"""The columns by which people tell rows apart, by place; None: by nothing less than all."""


Places = frozenset[int]
"""Columns by place."""


class AdaptedPart(NamedTuple):
    """An operator over what is left of its inputs: its arguments, and what its output has lost."""

    params: Mapping[str, Any]
    lost: Mapping[int, LostColumn]


def all_columns(part: DefinitionPart, wanted: Places, types: Types | None) -> Sequence[Places]:
    """The reads of an operator that looks at whole rows, or of which nothing else is known."""
    return [frozenset(range(len(each.schema))) for each in part.inputs]


def same_columns(part: DefinitionPart, wanted: Places, types: Types | None) -> Sequence[Places]:
    """Those of one that passes on columns in their places, and looks at none."""
    return [wanted & frozenset(range(len(each.schema))) for each in part.inputs]


def without_key(part: DefinitionPart, below: Sequence[Key]) -> Key:
    """The key of what an operator makes of rows that it does not pass on."""
    return None


def same_key(part: DefinitionPart, below: Sequence[Key]) -> Key:
    """That of its inputs, if they have the same."""
    return below[0] if all(each == below[0] for each in below) else None


def group_key(part: DefinitionPart, below: Sequence[Key]) -> Key:
    """The key of what has one row for each group, or some: the first columns."""
    return tuple(range(len(part.params["keys"])))


@dataclass(frozen=True)
class Spec:
    """An operator, by its word.

    Attributes:
        fit: fits a part to what is left of its inputs, some of which have lost columns.
        build: the kernel of a part; or, if it works row by row, `piece`: the piece of a chain.
        expressions: the texts of expressions among a part's arguments.
        key: by which columns its rows are told apart, given those of its inputs. It orders what
            people compare; two rows may have one key.
        reads: the columns of each input that it needs, where only some of its own are wanted.
        firm: the columns that it gives whether they are wanted or not: to compute them may raise.
        narrowed: its arguments if it gives only some of its columns, in their order; None: it gives
            all that are left of its inputs.
    """

    op: str
    fit: Callable[[DefinitionPart, Sequence[RemainingColumns], Types | None], AdaptedPart]
    build: Callable[[DefinitionPart, Types | None], Operator] | None = None
    piece: Callable[[DefinitionPart, Types | None], RowPiece] | None = None
    expressions: Callable[[DefinitionPart], Iterable[str]] = lambda _: ()
    key: Callable[[DefinitionPart, Sequence[Key]], Key] = without_key
    reads: Callable[[DefinitionPart, Places, Types | None], Sequence[Places]] = all_columns
    firm: Callable[[DefinitionPart], Places] = lambda _: frozenset()
    narrowed: Callable[[DefinitionPart, Sequence[int]], Mapping[str, Any]] | None = None


def compiled_part_expression(part: DefinitionPart, sql: str, type_: str) -> Expression:
    """An expression of a part, which knows its type: Spark is not asked again."""
    schema, settings = part.inputs[0].schema, of_params(part.params)
    return compile_expression(sql, schema, types=lambda *_: [type_], settings=settings)


def used_columns(part: DefinitionPart, sql: str, types: Types | None) -> Sequence[int]:
    """The places of the columns that an expression of a part reads.

    Raises:
        UsedError: if it cannot be compiled any more.
    """
    schema, settings = part.inputs[0].schema, of_params(part.params)
    try:
        return compile_expression(sql, schema, types=types, settings=settings).columns
    except NosyncError as error:
        raise LostColumnError(str(error)) from error


def refuse_retyped(lost: Mapping[int, LostColumn]) -> None:
    """Raises if a column with another type would be taken for one that is gone.

    Raises:
        UsedError: for the first such column.
    """
    for each in lost.values():
        if each.retyped:
            raise LostColumnError(each.why)


def every_column(
    part: DefinitionPart, inputs: Sequence[RemainingColumns], types: Types | None
) -> AdaptedPart:
    """The fit of an operator that needs all columns, as a function of rows does.

    Raises:
        UsedError: for the first column that is lost.
    """
    raise LostColumnError(next(lost.why for each in inputs for lost in each.lost.values()))


def passed_through(
    part: DefinitionPart, inputs: Sequence[RemainingColumns], types: Types | None
) -> AdaptedPart:
    """The fit of an operator that passes on rows as they are."""
    return AdaptedPart(part.params, inputs[0].lost)


def fit_comparing_rows(
    part: DefinitionPart, inputs: Sequence[RemainingColumns], types: Types | None
) -> AdaptedPart:
    """The fit of one that compares rows, or adds those of inputs, which must have lost the same."""
    for each in inputs:
        refuse_retyped(each.lost)
        if each.lost.keys() != inputs[0].lost.keys():
            every_column(part, inputs, types)
    return passed_through(part, inputs, types)
