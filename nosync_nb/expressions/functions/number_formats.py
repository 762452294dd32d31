"""Text parsed by a literal format: `to_number` by digits and signs, `to_binary` by its alphabet.

Text that does not fit the format is an error with ANSI mode and without; `try_to_number` and
`try_to_binary` give null. A format that Spark refuses is left to Spark, which names the reason.
"""

from __future__ import annotations

import base64
import re
import unicodedata
from typing import Any

from nosync_nb.expressions.evaluation.nodes import StrictNode, ValueNode
from nosync_nb.expressions.functions.rules import Rule, count
from nosync_nb.expressions.implicit_casts import NotProvedError, cast, implicit, literal_value
from nosync_nb.expressions.kernels.kernel import InvalidError, TextKernel, tried
from nosync_nb.expressions.typing_rules import DIGITS_MAX

_FORMAT = re.compile(
    r"(?P<first>MI|S)?(?P<dollar>\$)?(?P<whole>[09]+(?:[,G][09]+)*)"
    r"(?:[.D](?P<places>[09]*))?(?P<last>MI|S|PR)?"
)
_SIGNS = {"S": "+-", "MI": "-", "PR": "", None: ""}
_NO_BLANKS = "\u00a0\u2007\u202f"


def is_blank(character: str) -> bool:
    """Returns True if Java treats a character as white space."""
    if character in "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f":
        return True
    return unicodedata.category(character) in ("Zs", "Zl", "Zp") and character not in _NO_BLANKS


def _is_digit(character: str) -> bool:
    return character.isdecimal() and character < "\U00010000"


class _Reader:
    """A parser of numbers in a format.

    Attributes:
        digits: of the result, before and after the point; `places`: those after it.
    """

    def __init__(self, form: str) -> None:
        match = _FORMAT.fullmatch(form.upper())
        if match is None or (match["first"] and match["last"]):
            raise NotProvedError(f"the format {form!r}")
        self.form = form
        self.first, self.last = match["first"], match["last"]
        self.dollar = bool(match["dollar"])
        self.groups = re.split("[,G]", match["whole"])[::-1]
        self.places = len(match["places"] or "")
        self.point = match["places"] is not None
        self.digits = sum(map(len, self.groups)) + self.places
        if self.digits > DIGITS_MAX:
            raise NotProvedError(f"the format {form!r}")

    def number(self, text: str) -> int:
        """Returns the number in units of its last place.

        Raises:
            InvalidError: if the text does not fit.
        """
        at, negative = self._sign(text, 0, self.first)
        for sign in ("<" if self.last == "PR" and text[:1] == "<" else "", "$" * self.dollar):
            if text[at : at + len(sign)] != sign:
                self._refuse(text)
            at += len(sign)
        at, whole = self._run(text, at, ",")
        sizes = [len(group) for group in whole.split(",")][::-1]
        if len(sizes) > len(self.groups) or not all(map(_fits, self.groups, _filled(sizes))):
            self._refuse(text)
        places = ""
        if self.point and text[at : at + 1] == ".":
            at, places = self._run(text, at + 1, "") if self.places else (at + 1, "")
        digits = whole.replace(",", "") + places
        if len(places) > self.places or not digits:
            self._refuse(text)
        if self.last == "PR":
            negative = text[:1] == "<"
            at += text[at : at + 1] == ">" if negative else 0
            if negative and text[at - 1] != ">":
                self._refuse(text)
        elif self.last:
            at, negative = self._sign(text, at, self.last)
        if at < len(text):
            self._refuse(text)
        value: int = int(digits) * 10 ** (self.places - len(places))
        return -value if negative else value

    def _sign(self, text: str, at: int, kind: str | None) -> tuple[int, bool]:
        """The position after the sign, and True if it is a minus."""
        sign = text[at : at + 1]
        if not sign or sign not in _SIGNS[kind]:
            return at, False
        return at + 1, sign == "-"

    def _run(self, text: str, at: int, more: str) -> tuple[int, str]:
        """The position after a run of digits (and `more`), and these digits without white space."""
        start = at
        while at < len(text) and (
            _is_digit(text[at]) or is_blank(text[at]) or (more and text[at] == more)
        ):
            at += 1
        return at, "".join([c for c in text[start:at] if not is_blank(c)])

    def _refuse(self, text: str) -> None:
        raise InvalidError(f"{text!r} does not fit the format {self.form!r}")


def _filled(sizes: list[int]) -> list[int]:
    return [*sizes, *[0] * DIGITS_MAX]


def _fits(group: str, size: int) -> bool:
    """Checks the digits of a group: as many as in the format if it begins with 0, else at most."""
    return size == len(group) if group[0] == "0" else size <= len(group)


def _to_number(*, tries: bool) -> Rule:
    """`to_number(text, '$9,999.99')`."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        count(name, arguments, 2)
        text = implicit(arguments[0], "string", utc=utc)
        form = literal_value(arguments[1], "a format")
        if not isinstance(form, str):
            raise NotProvedError(f"{name} with a format that is not a string")
        reader = _Reader(form)
        kernel = TextKernel(reader.number, raises=True)
        type_ = f"decimal({reader.digits},{reader.places})"
        return StrictNode(name, type_, tried(kernel) if tries else kernel, (text,))

    return rule


def unhexed(text: str) -> bytes | None:
    """Returns the bytes of hexadecimal digits, None if the text is invalid."""
    digits = text if len(text) % 2 == 0 else "0" + text
    if not re.fullmatch("[0-9a-fA-F]*", digits):
        return None
    return bytes.fromhex(digits)


def _hex(text: str) -> bytes:
    value = unhexed(text)
    if value is None:
        raise InvalidError(f"{text!r} is not a hexadecimal number")
    return value


def _base64(text: str) -> bytes:
    """Decodes base64; white space may separate letters, and padding may be missing."""
    body = text.rstrip("=")
    letters = "".join([c for c in body if not is_blank(c)])
    padding = len(text) - len(body)
    wrong = len(letters) % 4 == 1 or (padding and (padding > 2 or (len(letters) + padding) % 4))
    if wrong or not re.fullmatch("[A-Za-z0-9+/]*", letters):
        raise InvalidError(f"{text!r} is not valid base64")
    return base64.b64decode(letters + "=" * (-len(letters) % 4))


_BYTES = {"hex": TextKernel(_hex, raises=True), "base64": TextKernel(_base64, raises=True)}


def _to_binary(*, tries: bool) -> Rule:
    """`to_binary(text [, 'hex', 'base64' or 'utf-8'])`."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        if not arguments:
            raise NotProvedError(f"{name} without arguments")
        text, *form = arguments
        kind: Any = str(literal_value(form[0], "a format")).lower() if form else "hex"
        if len(form) > 1 or kind not in (*_BYTES, "utf-8", "utf8"):
            raise NotProvedError(f"{name} by {kind!r}")
        text = implicit(text, "string", utc=utc)
        if kind not in _BYTES:
            return cast(text, "binary", utc=utc)
        kernel = _BYTES[kind]
        return StrictNode(name, "binary", tried(kernel) if tries else kernel, (text,))

    return rule


FUNCTIONS: dict[str, Rule] = {
    "to_number": _to_number(tries=False),
    "try_to_number": _to_number(tries=True),
    "to_binary": _to_binary(tries=False),
    "try_to_binary": _to_binary(tries=True),
}
EITHER = frozenset(("to_number", "to_binary"))
"""Functions that refuse a text also without ANSI mode."""
