"""The spec of an operator: its interface to the rest of the engine, by its word in definitions.

The module of an operator contains its kernel and its `Spec`; `registry.SPECS` lists all specs. A
spec builds the kernel from one part of a definition. It also adapts the part to added and removed
columns: it names the columns that the part needs, and those that it passes on. Properties of an
existing kernel are methods of `nosync_nb.operators.base.Operator`: the columns that it uses, the
way in which it runs in a loop, and the input of an audit.
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
        """The name of the operator in definitions."""

    @property
    def schema(self) -> Schema:
        """The columns of the output."""

    @property
    def inputs(self) -> Sequence[DefinitionPart]:
        """The parts that this part reads."""

    @property
    def params(self) -> Mapping[str, Any]:
        """The arguments of the operator."""

    @property
    def functions(self) -> Sequence[Callable[..., Any]]:
        """The user's functions among its arguments."""


class LostColumn(NamedTuple):
    """A column that was removed, or whose type was changed (`retyped`), with the reason."""

    why: str
    retyped: bool


class LostColumnError(Exception):
    """A part needs a lost column; the message is the reason for the loss."""


class RemainingColumns(NamedTuple):
    """The remaining columns of an input.

    Attributes:
        places: the previous positions of the remaining columns.
        lost: the lost columns, by previous position.
    """

    places: Sequence[int]
    lost: Mapping[int, LostColumn]

    def moved(self, places: Iterable[int]) -> list[int]:
        """Returns the new positions of columns, given their previous positions.

        Raises:
            LostColumnError: if one of the columns is lost.
        """
        now = {place: i for i, place in enumerate(self.places)}
        for place in places:
            if place in self.lost:
                raise LostColumnError(self.lost[place].why)
        return [now[place] for place in places]


Key = tuple[int, ...] | None
"""The positions of the columns that identify rows to a user; `None` means all columns together."""


Places = frozenset[int]
"""Positions of columns."""


class AdaptedPart(NamedTuple):
    """A part over the remaining columns of its inputs: its arguments and lost output columns."""

    params: Mapping[str, Any]
    lost: Mapping[int, LostColumn]


def all_columns(part: DefinitionPart, wanted: Places, types: Types | None) -> Sequence[Places]:
    """Returns all columns of all inputs: the default, and right for operators on whole rows."""
    return [frozenset(range(len(each.schema))) for each in part.inputs]


def same_columns(part: DefinitionPart, wanted: Places, types: Types | None) -> Sequence[Places]:
    """Returns the requested columns, for an operator that only passes columns on unchanged."""
    return [wanted & frozenset(range(len(each.schema))) for each in part.inputs]


def without_key(part: DefinitionPart, below: Sequence[Key]) -> Key:
    """Returns no key, for an operator whose output rows have no known key."""
    return None


def same_key(part: DefinitionPart, below: Sequence[Key]) -> Key:
    """Returns the key of the inputs if all of them have the same key; else None."""
    return below[0] if all(each == below[0] for each in below) else None


def group_key(part: DefinitionPart, below: Sequence[Key]) -> Key:
    """Returns the grouping columns, which come first in the output of an operator on groups."""
    return tuple(range(len(part.params["keys"])))


@dataclass(frozen=True)
class Spec:
    """The interface of one operator to the rest of the engine.

    Attributes:
        op: the name of the operator in definitions.
        fit: adapts a part to its inputs after some of their columns were lost.
        build: builds the kernel of a part; None for a row-wise operator, which has a `piece`.
        piece: builds the piece of a fused chain; None for an operator that is not row-wise.
        expressions: returns the SQL texts among the arguments of a part.
        key: returns the columns that identify the rows of a part, given the keys of its inputs. The
            key orders displayed rows; several rows may have the same key.
        reads: returns the columns of each input that are needed for some of the output columns.
        firm: returns the columns that are computed even if they are not requested, because
            computing them may raise.
        narrowed: returns the arguments for a part with only some of its output columns, in the same
            order. None if the part always returns all remaining columns of its inputs.
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
    """Compiles an expression of a part; its type is known, so Spark need not analyse it."""
    schema, settings = part.inputs[0].schema, of_params(part.params)
    return compile_expression(sql, schema, types=lambda *_: [type_], settings=settings)


def used_columns(part: DefinitionPart, sql: str, types: Types | None) -> Sequence[int]:
    """Returns the positions of the columns that an expression of a part reads.

    Raises:
        LostColumnError: if the expression can no longer be compiled.
    """
    schema, settings = part.inputs[0].schema, of_params(part.params)
    try:
        return compile_expression(sql, schema, types=types, settings=settings).columns
    except NosyncError as error:
        raise LostColumnError(str(error)) from error


def refuse_retyped(lost: Mapping[int, LostColumn]) -> None:
    """Raises an error if a lost column exists with another type.

    Raises:
        LostColumnError: for the first such column.
    """
    for each in lost.values():
        if each.retyped:
            raise LostColumnError(each.why)


def every_column(
    part: DefinitionPart, inputs: Sequence[RemainingColumns], types: Types | None
) -> AdaptedPart:
    """Refuses every lost column, for an operator that needs all columns of its inputs.

    Raises:
        LostColumnError: for the first column that is lost.
    """
    raise LostColumnError(next(lost.why for each in inputs for lost in each.lost.values()))


def passed_through(
    part: DefinitionPart, inputs: Sequence[RemainingColumns], types: Types | None
) -> AdaptedPart:
    """Adapts an operator that needs no columns, and passes the remaining ones on unchanged."""
    return AdaptedPart(part.params, inputs[0].lost)


def fit_comparing_rows(
    part: DefinitionPart, inputs: Sequence[RemainingColumns], types: Types | None
) -> AdaptedPart:
    """Adapts an operator that compares or adds whole rows of its inputs.

    Raises:
        LostColumnError: if a lost column exists with another type, or if the inputs have lost
            different columns.
    """
    for each in inputs:
        refuse_retyped(each.lost)
        if each.lost.keys() != inputs[0].lost.keys():
            every_column(part, inputs, types)
    return passed_through(part, inputs, types)
