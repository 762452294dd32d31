"""The spec of an operator: its interface to the rest of the engine, by its word in definitions.

The file of an operator has the kernel and its `Spec`, and `registry.SPECS` lists them. A spec
builds the kernel from one part of a definition. It also adapts the part to added and removed
columns: it names the columns that the part needs, and those that it passes on. Properties of an
existing kernel (the columns it uses, its kind in a loop, the input of an audit) are methods of
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
        """The parts that it reads."""

    @property
    def params(self) -> Mapping[str, Any]:
        """Its arguments."""

    @property
    def functions(self) -> Sequence[Callable[..., Any]]:
        """The user's functions among its arguments."""


class LostColumn(NamedTuple):
    """A column that was removed or changed: why, and True if it exists with another type."""

    why: str
    retyped: bool


class LostColumnError(Exception):
    """A part uses a lost column; the message names it."""


class RemainingColumns(NamedTuple):
    """The remaining columns of an input.

    Attributes:
        places: the previous positions of the remaining columns.
        lost: the removed ones, by position.
    """

    places: Sequence[int]
    lost: Mapping[int, LostColumn]

    def moved(self, places: Iterable[int]) -> list[int]:
        """Returns the new positions of columns.

        Raises:
            LostColumnError: if one of them is lost.
        """
        now = {place: i for i, place in enumerate(self.places)}
        for place in places:
            if place in self.lost:
                raise LostColumnError(self.lost[place].why)
        return [now[place] for place in places]


Key = tuple[int, ...] | None
"""The positions of the columns that identify rows to a user; None: all columns together."""


Places = frozenset[int]
"""Positions of columns."""


class AdaptedPart(NamedTuple):
    """An operator over the remaining columns of its inputs: its arguments, and its lost outputs."""

    params: Mapping[str, Any]
    lost: Mapping[int, LostColumn]


def all_columns(part: DefinitionPart, wanted: Places, types: Types | None) -> Sequence[Places]:
    """Returns the reads of an operator that needs whole rows, or is not known better."""
    return [frozenset(range(len(each.schema))) for each in part.inputs]


def same_columns(part: DefinitionPart, wanted: Places, types: Types | None) -> Sequence[Places]:
    """Returns the reads of an operator that passes on columns unchanged, and needs none."""
    return [wanted & frozenset(range(len(each.schema))) for each in part.inputs]


def without_key(part: DefinitionPart, below: Sequence[Key]) -> Key:
    """Returns the key of an operator whose output rows are new."""
    return None


def same_key(part: DefinitionPart, below: Sequence[Key]) -> Key:
    """Returns the key of its inputs, if they have the same."""
    return below[0] if all(each == below[0] for each in below) else None


def group_key(part: DefinitionPart, below: Sequence[Key]) -> Key:
    """Returns the key of an operator with one or more rows for each group: the first columns."""
    return tuple(range(len(part.params["keys"])))


@dataclass(frozen=True)
class Spec:
    """An operator, by its word.

    Attributes:
        fit: adapts a part to the remaining columns of its inputs, some of which have lost columns.
        build: the kernel of a part; or, if it works row by row, `piece`: the piece of a chain.
        expressions: the texts of expressions among a part's arguments.
        key: the columns that identify its rows, given those of its inputs. It orders displayed
            rows; two rows may have one key.
        reads: the columns of each input that it needs, if only some of its own are requested.
        firm: the columns that are computed even if they are not requested, because computing them
            may raise.
        narrowed: its arguments if it returns only some of its columns, in their order; None: it
            returns all remaining columns of its inputs.
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
    """Compiles an expression of a part with a known type, so that Spark need not analyse it."""
    schema, settings = part.inputs[0].schema, of_params(part.params)
    return compile_expression(sql, schema, types=lambda *_: [type_], settings=settings)


def used_columns(part: DefinitionPart, sql: str, types: Types | None) -> Sequence[int]:
    """Returns the positions of the columns that an expression of a part reads.

    Raises:
        LostColumnError: if it cannot be compiled any more.
    """
    schema, settings = part.inputs[0].schema, of_params(part.params)
    try:
        return compile_expression(sql, schema, types=types, settings=settings).columns
    except NosyncError as error:
        raise LostColumnError(str(error)) from error


def refuse_retyped(lost: Mapping[int, LostColumn]) -> None:
    """Raises if a column with another type would replace a removed one.

    Raises:
        LostColumnError: for the first such column.
    """
    for each in lost.values():
        if each.retyped:
            raise LostColumnError(each.why)


def every_column(
    part: DefinitionPart, inputs: Sequence[RemainingColumns], types: Types | None
) -> AdaptedPart:
    """Returns the fit of an operator that needs all columns, such as a function of rows.

    Raises:
        LostColumnError: for the first column that is lost.
    """
    raise LostColumnError(next(lost.why for each in inputs for lost in each.lost.values()))


def passed_through(
    part: DefinitionPart, inputs: Sequence[RemainingColumns], types: Types | None
) -> AdaptedPart:
    """Returns the fit of an operator that passes on rows unchanged."""
    return AdaptedPart(part.params, inputs[0].lost)


def fit_comparing_rows(
    part: DefinitionPart, inputs: Sequence[RemainingColumns], types: Types | None
) -> AdaptedPart:
    """Returns the fit of an operator that compares rows, or adds inputs with equal losses."""
    for each in inputs:
        refuse_retyped(each.lost)
        if each.lost.keys() != inputs[0].lost.keys():
            every_column(part, inputs, types)
    return passed_through(part, inputs, types)
