"""Texts that are composed of parts of the user's statement.

A statement that writes becomes queries: `DELETE FROM t WHERE p` reads `SELECT * FROM t WHERE (p)`.
An error in such a query is raised at the part of the statement that it came from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from nosync_nb.collections.sql.grammar import TextSpan, failure, sql_reason
from nosync_nb.errors import ExpressionError, SchemaError, SqlError


class ComposedText(NamedTuple):
    """A text, and the places in it that were cut from another one.

    Attributes:
        origin: the text of the user.
        statement: the part of it that the whole text stands for.
        parts: for each cut part, its position here, and its span in the user's text.
    """

    text: str
    origin: str
    statement: TextSpan
    parts: tuple[tuple[int, TextSpan], ...]

    def span_in_origin(self, span: tuple[int, int]) -> TextSpan:
        """Returns the part of the user's text that a part of this one came from."""
        for at, cut in self.parts:
            if at <= span[0] < at + cut.stop - cut.start:
                start = cut.start + span[0] - at
                return TextSpan(start, max(start + 1, min(cut.stop, cut.start + span[1] - at)))
            end = at + cut.stop - cut.start
            if span[1] - span[0] <= 2 and 0 <= span[0] - end <= 2:  # what closes the part
                return TextSpan(cut.stop - 1, cut.stop)
        return self.statement

    @contextmanager
    def errors_at_origin(self, tables: Callable[[], str] | None = None) -> Iterator[None]:
        """Raises errors of the block at the user's text, with line, column and caret.

        Args:
            tables: returns the hint for a table that does not exist.
        """
        try:
            yield
        except SqlError as error:
            span = self.statement if error.span is None else self.span_in_origin(error.span)
            is_unknown = error.reason.startswith("[TABLE_OR_VIEW_NOT_FOUND]")
            hint = tables() if tables is not None and is_unknown else error.hint
            raise self._failure(span, error.reason, hint) from error.__cause__
        except (SchemaError, ExpressionError) as error:
            reason = sql_reason(error)
            raise self._failure(self.statement, reason, error.hint) from error

    def _failure(self, span: TextSpan, reason: str, hint: str | None) -> SqlError:
        return failure(self.origin, span, reason, hint or "change this part")


def composed(origin: str, statement: TextSpan, *pieces: str | TextSpan | None) -> ComposedText:
    """Returns a text of own pieces and of parts of the user's text."""
    text, parts = "", []
    for piece in pieces:
        if isinstance(piece, TextSpan):
            parts.append((len(text), piece))
            text += origin[piece.start : piece.stop]
        elif piece is not None:
            text += piece
    return ComposedText(text, origin, statement, tuple(parts))
