"""Text patterns: `like`, `ilike`, and regular expressions with a literal pattern.

A pattern of `like` has the wildcards `%` and `_`, which may be escaped. It is a literal or a
column.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from nosync_nb.expressions.evaluation.nested_nodes import RowwiseNode
from nosync_nb.expressions.evaluation.nodes import LiteralNode, StrictNode, ValueNode
from nosync_nb.expressions.functions.rules import Function, Rule, check_arity
from nosync_nb.expressions.implicit_casts import implicit, literal_value
from nosync_nb.expressions.kernels import reasons, strings
from nosync_nb.expressions.kernels.java_regex import compiled, may_be_empty, replacement
from nosync_nb.expressions.kernels.kernel import InvalidError, NotProvedError, TextKernel
from nosync_nb.rows import buffers

ESCAPE = "\\"


class _LikePiece(NamedTuple):
    """A part of a pattern: literal text, or a wildcard."""

    text: str
    wild: bool


_ESCAPES = r"write \\ for a backslash; an escape precedes %, _ or another escape"


def _escape_reason(pattern: str, letter: str) -> reasons.Reason:
    if letter:
        where = f"the pattern {pattern!r} has an escape before {letter!r}"
        return reasons.Reason("INVALID_FORMAT.ESC_IN_THE_MIDDLE", where, _ESCAPES)
    fault = f"the pattern {pattern!r} ends in an escape"
    return reasons.Reason("INVALID_FORMAT.ESC_AT_THE_END", fault, _ESCAPES)


def _like_pieces(pattern: str, escape: str) -> list[_LikePiece]:
    """Splits a pattern into literal texts and wildcards.

    Raises:
        InvalidError: if an escape precedes a character that needs none, or is the last character.
    """
    pieces: list[_LikePiece] = []
    letters = iter(pattern)
    for letter in letters:
        wild = letter in "%_"
        if letter == escape:
            letter, wild = next(letters, ""), False
            if letter not in ("%", "_", escape) or not letter:
                raise InvalidError(_escape_reason(pattern, letter))
        if pieces and not wild and not pieces[-1].wild:
            pieces[-1] = _LikePiece(pieces[-1].text + letter, False)
        else:
            pieces.append(_LikePiece(letter, wild))
    return pieces


@lru_cache(maxsize=4096)
def _compiled(pattern: str, escape: str) -> re.Pattern[str]:
    """Returns the pattern as a Python regular expression.

    Each part between two `%` is matched at its first position, by an atomic group. So the cost is
    at most the product of the lengths of text and pattern. With backtracking, all positions of all
    parts would be tried.
    """
    parts = [""]
    for piece in _like_pieces(pattern, escape):
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
    """Returns the kernel of a literal pattern; Arrow evaluates it for large batches."""
    pieces = _like_pieces(pattern, escape)
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
    """Escapes a text for the regular expressions of Arrow (RE2)."""
    return "".join("\\" + c if c.isascii() and not c.isalnum() else c for c in text)


def _simple(body: str, before: bool, after: bool) -> TextKernel:
    if before and after:
        return TextKernel(lambda s: body in s, lambda a: pc.match_substring(a, pattern=body))
    if before:
        return TextKernel(lambda s: s.endswith(body), lambda a: pc.ends_with(a, pattern=body))
    if after:
        return TextKernel(lambda s: s.startswith(body), lambda a: pc.starts_with(a, pattern=body))
    return TextKernel(lambda s: s == body, lambda a: pc.equal(a, buffers.text(body)))


def like_rule(escape: str = ESCAPE, *, lower: bool = False) -> Rule:
    """Returns the rule of `like`, or of `ilike` (`lower`)."""

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
            raise NotProvedError(error.reason.fault) from None
        return StrictNode(name, "boolean", kernel, (text,))

    return rule


def one_of(texts_wanted: frozenset[str]) -> TextKernel:
    """Returns the kernel of `text in (...)` for literals."""
    return TextKernel(
        texts_wanted.__contains__,
        lambda a: pc.is_in(a, value_set=buffers.arrow_from_list(sorted(texts_wanted), pa.string())),
    )


def _pattern(node: ValueNode) -> re.Pattern[str]:
    text = literal_value(node, "a regular expression")
    if not isinstance(text, str):
        raise NotProvedError("a regular expression that is not a string")
    return compiled(text)


def _nonempty_pattern(node: ValueNode) -> re.Pattern[str]:
    """Returns a pattern that cannot match the empty text.

    Java also matches the empty text between the two halves of a character.
    """
    pattern = _pattern(node)
    if may_be_empty(pattern):
        raise NotProvedError("a regular expression that matches nothing, between characters")
    return pattern


def _counter(node: ValueNode) -> Callable[[str], int]:
    pattern = _nonempty_pattern(node)
    return lambda text: sum(1 for _ in pattern.finditer(text))


def _rule_of(
    result: str, made: Callable[[re.Pattern[str]], Callable[[str], Any]], **more: Any
) -> Rule:
    """Returns the rule of a function of a text and a literal pattern."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        check_arity(name, arguments, 2)
        text = implicit(arguments[0], "string", utc=utc)
        return StrictNode(name, result, TextKernel(made(_pattern(arguments[1])), **more), (text,))

    return rule


def _position(pattern: re.Pattern[str]) -> Callable[[str], int]:
    def row(text: str) -> int:
        match = pattern.search(text)
        return 0 if match is None else match.start() + 1

    return row


def _substring(pattern: re.Pattern[str]) -> Callable[[str], str | None]:
    def row(text: str) -> str | None:
        match = pattern.search(text)
        return None if match is None else match[0]

    return row


def _regexp_count(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `regexp_count(text, pattern)`."""
    check_arity(name, arguments, 2)
    text = implicit(arguments[0], "string", utc=utc)
    return StrictNode(name, "int", TextKernel(_counter(arguments[1])), (text,))


def _regexp_extract(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `regexp_extract(text, pattern, group)`, which returns an empty text without a match."""
    check_arity(name, arguments, 2, 3)
    text, pattern = implicit(arguments[0], "string", utc=utc), _pattern(arguments[1])
    group = literal_value(arguments[2], "a group") if len(arguments) == 3 else 1
    if not isinstance(group, int) or not 0 <= group <= pattern.groups:
        raise NotProvedError("a group that the pattern does not have")

    def row(value: str) -> str:
        match = pattern.search(value)
        return "" if match is None else match[group] or ""

    return StrictNode(name, "string", TextKernel(row), (text,))


def _regexp_replace(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `regexp_replace(text, pattern, replacement)`."""
    check_arity(name, arguments, 3)
    text, pattern = implicit(arguments[0], "string", utc=utc), _nonempty_pattern(arguments[1])
    new = literal_value(arguments[2], "a replacement")
    if not isinstance(new, str):
        raise NotProvedError("a replacement that is not a string")
    parts = replacement(new, pattern.groups)

    def replace_matches(match: re.Match[str]) -> str:
        return "".join(part if isinstance(part, str) else match[part] or "" for part in parts)

    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) == len(parts):  # constant, so no function is called for each match
        same = "".join(texts).replace("\\", r"\\")
        return StrictNode(name, "string", TextKernel(lambda s: pattern.sub(same, s)), (text,))
    return StrictNode(
        name, "string", TextKernel(lambda s: pattern.sub(replace_matches, s)), (text,)
    )


def _split(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `split(text, pattern [, limit])`, which returns at most `limit` pieces."""
    check_arity(name, arguments, 2, 3)
    text = implicit(arguments[0], "string", utc=utc)
    limit = [implicit(argument, "int", utc=utc) for argument in arguments[2:]]
    given = literal_value(arguments[1], "a regular expression")
    if not isinstance(given, str):
        raise NotProvedError("a regular expression that is not a string")
    if not given:
        row = _characters
    elif given.isascii() and not set(given) & _SIGNS:
        row = _split_plain(given)
    else:
        row = _split_by(_nonempty_pattern(arguments[1]))
    return RowwiseNode(name, "array<string>", row, (text, *limit))


_SIGNS = frozenset("\\^$.|?*+()[]{}")


def _characters(text: str, limit: int = 0) -> list[str]:
    if not text or limit <= 0 or limit > len(text):
        return list(text) or [""]
    return [*text[: limit - 1], text[limit - 1 :]]


def _split_plain(mark: str) -> Callable[..., list[str]]:
    return lambda text, limit=0: text.split(mark, limit - 1 if limit > 0 else -1)


def _split_by(pattern: re.Pattern[str]) -> Callable[..., list[str]]:
    def row(text: str, limit: int = 0) -> list[str]:
        pieces: list[str] = []
        start = 0
        for match in pattern.finditer(text):
            if len(pieces) == limit - 1:
                break
            pieces.append(text[start : match.start()])
            start = match.end()
        return [*pieces, text[start:]]

    return row


_MATCHES = _rule_of("boolean", lambda pattern: lambda text: pattern.search(text) is not None)

FUNCTIONS: dict[str, Function | Rule] = {
    "rlike": _MATCHES,
    "regexp": _MATCHES,
    "regexp_like": _MATCHES,
    "regexp_count": _regexp_count,
    "regexp_instr": _rule_of("int", _position),
    "regexp_substr": _rule_of("string", _substring, nullable=True),
    "regexp_extract": _regexp_extract,
    "regexp_replace": _regexp_replace,
    "split": _split,
}
