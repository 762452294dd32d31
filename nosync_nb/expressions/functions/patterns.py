"""`like` and `ilike`: patterns of `%` and `_`, an escape before them, given or from a column."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from nosync_nb.expressions.evaluation.nodes import LiteralNode, StrictNode, ValueNode
from nosync_nb.expressions.functions.rules import Rule
from nosync_nb.expressions.implicit_casts import NotProvedError, implicit
from nosync_nb.expressions.kernels import strings
from nosync_nb.expressions.kernels.kernel import InvalidError, TextKernel
from nosync_nb.rows import buffers

ESCAPE = "\\"


class _LikePiece(NamedTuple):
    """A run of letters, or a wildcard."""

    text: str
    wild: bool


def _pieces(pattern: str, escape: str) -> list[_LikePiece]:
    """Cuts a pattern.

    Raises:
        InvalidError: if an escape stands before what needs none, or at the end.
    """
    pieces: list[_LikePiece] = []
    letters = iter(pattern)
    for letter in letters:
        wild = letter in "%_"
        if letter == escape:
            letter, wild = next(letters, ""), False
            if letter not in ("%", "_", escape) or not letter:
                raise InvalidError(f"the pattern {pattern!r} has an escape before no sign")
        if pieces and not wild and not pieces[-1].wild:
            pieces[-1] = _LikePiece(pieces[-1].text + letter, False)
        else:
            pieces.append(_LikePiece(letter, wild))
    return pieces


@lru_cache(maxsize=4096)
def _compiled(pattern: str, escape: str) -> re.Pattern[str]:
    """The pattern as Python's: each part between `%` is sought once, from the left.

    Atomic groups keep its cost at the product of the lengths of text and pattern. A match that
    can take back where it found a part tries all places of all parts.
    """
    parts = [""]
    for piece in _pieces(pattern, escape):
        if piece.wild and piece.text == "%":
            parts.append("")
        else:
            parts[-1] += "." if piece.wild else re.escape(piece.text)
    first, *rest = parts
    sought = "".join(f"(?>.*?{part})" for part in rest[:-1])
    return re.compile(first + sought + "".join(f".*{part}" for part in rest[-1:]), re.DOTALL)


def _by_pattern(escape: str) -> TextKernel:
    def row(text: str, pattern: str) -> bool:
        return _compiled(pattern, escape).fullmatch(text) is not None

    return TextKernel(row, raises=True)


def _fixed(pattern: str, escape: str) -> TextKernel:
    """The kernel of a literal pattern; the plain ones are Arrow's too."""
    pieces = _pieces(pattern, escape)
    body = [piece for piece in pieces if piece != ("%", True)]
    if not any(piece.wild for piece in body) and len(body) <= 1:
        before = bool(pieces) and pieces[0] == ("%", True)
        after = bool(pieces) and pieces[-1] == ("%", True)
        return _simple(body[0].text if body else "", before, after)
    match = _compiled(pattern, escape).fullmatch
    arrow = "".join({"_": ".", "%": ".*"}[p.text] if p.wild else _quoted(p.text) for p in pieces)
    return TextKernel(
        lambda text: match(text) is not None,
        lambda a: pc.match_substring_regex(a, pattern=f"(?s)\\A(?:{arrow})\\z"),
    )


def _quoted(text: str) -> str:
    """Quotes letters for Arrow's regular expressions (RE2)."""
    return "".join("\\" + c if c.isascii() and not c.isalnum() else c for c in text)


def _simple(body: str, before: bool, after: bool) -> TextKernel:
    if before and after:
        return TextKernel(lambda s: body in s, lambda a: pc.match_substring(a, pattern=body))
    if before:
        return TextKernel(lambda s: s.endswith(body), lambda a: pc.ends_with(a, pattern=body))
    if after:
        return TextKernel(lambda s: s.startswith(body), lambda a: pc.starts_with(a, pattern=body))
    return TextKernel(lambda s: s == body, lambda a: pc.equal(a, buffers.text(body)))


def like(escape: str = ESCAPE, *, lower: bool = False) -> Rule:
    """The rule of `like`, and (lower) of `ilike`."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        text, pattern = (implicit(argument, "string", utc=utc) for argument in arguments)
        if lower:
            text = StrictNode("lower", "string", strings.lower, (text,))
        if not isinstance(pattern, LiteralNode) or pattern.value is None:
            if lower:
                pattern = StrictNode("lower", "string", strings.lower, (pattern,))
            return StrictNode(name, "boolean", _by_pattern(escape), (text, pattern))
        wanted = strings.lower.row(pattern.value) if lower else pattern.value
        try:
            kernel = _fixed(wanted, escape)
        except InvalidError as error:
            raise NotProvedError(str(error)) from None
        return StrictNode(name, "boolean", kernel, (text,))

    return rule


def one_of(texts_wanted: frozenset[str]) -> TextKernel:
    """`text in (...)` of literals."""
    return TextKernel(
        texts_wanted.__contains__,
        lambda a: pc.is_in(a, value_set=buffers.arrow_from_list(sorted(texts_wanted), pa.string())),
    )
