"""Implements the line form of `%dd`: the name, the arguments and the action of each subcommand.

This module defines the class of subcommands, and the types of their arguments. `dispatch` parses a
line and runs it. Each of the other modules defines some subcommands in a table.
"""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from nosync.notebook import Notebook
    from nosync_nb import Session

Argument = tuple[Sequence[str], dict[str, Any]]


class Subcommand(NamedTuple):
    """A subcommand: name, summary, function, and its arguments for `add_argument`.

    A `raw` subcommand has one argument, which is the rest of the line without any parsing.
    """

    name: str
    summary: str
    run: Callable[[Notebook, Namespace], object]
    arguments: Sequence[Argument] = ()
    raw: bool = False


class Quoted(str):
    """A word in quotes: text, even if it looks like a number."""

    __slots__ = ()


def moment(text: str) -> int | str:
    """Parses an epoch, a negative offset, or the text of a label or a datetime.

    A number in quotes is a label: `%dd show slow --at "2013"`.
    """
    if isinstance(text, Quoted):
        return str(text)
    try:
        return int(text)
    except ValueError:
        return text


def limit(text: str) -> int:
    """Parses the number of rows to show: 0 or more."""
    rows = int(text)
    if rows < 0:
        raise ArgumentTypeError(f"{rows} is not a number of rows: 0 or more")
    return rows


def epoch_of(session: Session, at: int | str) -> int:
    """Returns the epoch that a `moment` names, by the rules of `at` in the API.

    A text that is not a label is parsed as a datetime in ISO form.

    Raises:
        TimeError: if no epoch matches; the hint lists the existing epochs.
    """
    from nosync_nb.errors import TimeError

    try:
        return session.resolve(at)
    except TimeError:
        when = _datetime(at)
        if when is None:
            raise
        return session.resolve(when)


def _datetime(text: int | str) -> datetime | None:
    """Parses a datetime in ISO form, in local time if it has no zone; None for other texts."""
    try:
        return datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
