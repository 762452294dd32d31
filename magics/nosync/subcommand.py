"""The form of a subcommand of `%dd`, and readers of its arguments."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from nosync.notebook import Notebook

Argument = tuple[Sequence[str], dict[str, Any]]


class Subcommand(NamedTuple):
    """One row of the list: name, summary, what it does, arguments as argparse takes them."""

    name: str
    summary: str
    run: Callable[[Notebook, Namespace], Any]
    arguments: Sequence[Argument] = ()


def moment(text: str) -> int | str:
    """Reads an epoch, a negative offset, or a label."""
    try:
        return int(text)
    except ValueError:
        return text
