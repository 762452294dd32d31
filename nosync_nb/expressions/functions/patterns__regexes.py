"""`rlike`, `split` and the functions of regular expressions, with a literal pattern."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from nosync_nb.expressions.evaluation.nested_nodes import RowwiseNode
from nosync_nb.expressions.evaluation.nodes import StrictNode, ValueNode
from nosync_nb.expressions.functions.entry import Function
from nosync_nb.expressions.functions.rules import Rule, count
from nosync_nb.expressions.implicit_casts import NotProvedError, implicit, literal_value
from nosync_nb.expressions.kernels.java_regex import compiled, may_be_empty, replacement
from nosync_nb.expressions.kernels.kernel import TextKernel


def _pattern(node: ValueNode) -> re.Pattern[str]:
    text = literal_value(node, "a regular expression")
    if not isinstance(text, str):
        raise NotProvedError("a regular expression that is no text")
    return compiled(text)


def _filled(node: ValueNode) -> re.Pattern[str]:
    """A pattern that never matches nothing: there Java cuts characters in two."""
    pattern = _pattern(node)
    if may_be_empty(pattern):
        raise NotProvedError("a regular expression that matches nothing, between characters")
    return pattern


def _count(node: ValueNode) -> Callable[[str], int]:
    pattern = _filled(node)
    return lambda text: sum(1 for _ in pattern.finditer(text))


def _of(result: str, made: Callable[[re.Pattern[str]], Callable[[str], Any]], **more: Any) -> Rule:
    """A function of a text and a pattern."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        count(name, arguments, 2)
        text = implicit(arguments[0], "string", utc=utc)
        return StrictNode(name, result, TextKernel(made(_pattern(arguments[1])), **more), (text,))

    return rule


def _place(pattern: re.Pattern[str]) -> Callable[[str], int]:
    def row(text: str) -> int:
        match = pattern.search(text)
        return 0 if match is None else match.start() + 1

    return row


def _piece(pattern: re.Pattern[str]) -> Callable[[str], str | None]:
    def row(text: str) -> str | None:
        match = pattern.search(text)
        return None if match is None else match[0]

    return row


def counted(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """`regexp_count(text, pattern)`."""
    count(name, arguments, 2)
    text = implicit(arguments[0], "string", utc=utc)
    return StrictNode(name, "int", TextKernel(_count(arguments[1])), (text,))


def extract(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """`regexp_extract(text, pattern, group)`: empty if nothing matches."""
    if len(arguments) not in (2, 3):
        raise NotProvedError(f"{name} of {len(arguments)} arguments")
    text, pattern = implicit(arguments[0], "string", utc=utc), _pattern(arguments[1])
    group = literal_value(arguments[2], "a group") if len(arguments) == 3 else 1
    if not isinstance(group, int) or not 0 <= group <= pattern.groups:
        raise NotProvedError("a group that the pattern does not have")

    def row(value: str) -> str:
        match = pattern.search(value)
        return "" if match is None else match[group] or ""

    return StrictNode(name, "string", TextKernel(row), (text,))


def replace(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """`regexp_replace(text, pattern, replacement)`."""
    count(name, arguments, 3)
    text, pattern = implicit(arguments[0], "string", utc=utc), _filled(arguments[1])
    new = literal_value(arguments[2], "a replacement")
    if not isinstance(new, str):
        raise NotProvedError("a replacement that is no text")
    parts = replacement(new, pattern.groups)

    def made(match: re.Match[str]) -> str:
        return "".join(part if isinstance(part, str) else match[part] or "" for part in parts)

    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) == len(parts):  # the same for every match: it is put in without a call
        same = "".join(texts).replace("\\", r"\\")
        return StrictNode(name, "string", TextKernel(lambda s: pattern.sub(same, s)), (text,))
    return StrictNode(name, "string", TextKernel(lambda s: pattern.sub(made, s)), (text,))


def split(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """`split(text, pattern [, limit])`: as many pieces as there are, or the limit at most."""
    if len(arguments) not in (2, 3):
        raise NotProvedError(f"{name} of {len(arguments)} arguments")
    text = implicit(arguments[0], "string", utc=utc)
    limit = [implicit(argument, "int", utc=utc) for argument in arguments[2:]]
    given = literal_value(arguments[1], "a regular expression")
    if not isinstance(given, str):
        raise NotProvedError("a regular expression that is no text")
    if not given:
        row = _characters
    elif given.isascii() and not set(given) & _SIGNS:
        row = _split_plain(given)
    else:
        row = _split_by(_filled(arguments[1]))
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


_MATCHES = _of("boolean", lambda pattern: lambda text: pattern.search(text) is not None)

FUNCTIONS: dict[str, Function | Rule] = {
    "rlike": _MATCHES,
    "regexp": _MATCHES,
    "regexp_like": _MATCHES,
    "regexp_count": counted,
    "regexp_instr": _of("int", _place),
    "regexp_substr": _of("string", _piece, nullable=True),
    "regexp_extract": extract,
    "regexp_replace": replace,
    "split": split,
}
