"""Translates Java's regular expressions that Python can read in the same way.

A pattern is translated sign by sign. Signs with the same meaning are copied; `.`, `$` and named
groups are rewritten. Any other sign, with a different or unknown meaning, is refused with its
position; then the expression is left to Spark, whatever its rows are.
"""

from __future__ import annotations

import re
from functools import lru_cache

from nosync_nb.expressions.implicit_casts import NotProvedError
from nosync_nb.expressions.kernels.regex_complexity import may_explode

_NO_BREAK = "[^\\n\\r\\u0085\\u2028\\u2029]"
_END = "(?=(?:\\r\\n|(?<!\\r)\\n|[\\r\\u0085\\u2028\\u2029])?\\Z)"
_CLASSES = "dDwWsS"
_CONTROLS = {"t": "\\t", "n": "\\n", "r": "\\r", "f": "\\f"}
_COUNT = re.compile(r"\{(\d{1,4})(,(\d{0,4}))?\}")
_NAMED = re.compile(r"\?<([a-zA-Z][a-zA-Z0-9]*)>")
_GROUPS = ("?:", "?=", "?!")


@lru_cache(maxsize=1024)
def compiled(pattern: str) -> re.Pattern[str]:
    """Returns Java's pattern as Python's.

    Raises:
        NotProvedError: if Python reads it in another way, or not at all; or if it might not end.
            Nothing else runs in this process while Python matches a pattern, not even Ctrl-C.
    """
    translated = _JavaReader(pattern).read()
    if may_explode(translated):
        raise NotProvedError(
            f"the pattern {pattern!r}: nested repetitions that can match a text in"
            " exponentially many ways"
        )
    return translated


def may_be_empty(pattern: re.Pattern[str]) -> bool:
    """Returns True if a translated pattern may match no character at all."""
    text = pattern.pattern.replace(_END, "").replace("\\A", "")
    if "(?=" in text or "(?!" in text:
        return True
    return re.compile(text, pattern.flags).fullmatch("") is not None


class _JavaReader:
    """Translates one pattern."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0
        self.parts: list[str] = []
        self.opened: list[int] = []  # the parts at which open groups begin
        self.groups = 0
        self.last: int | None = None  # the part to which a quantifier applies

    def read(self) -> re.Pattern[str]:
        flags = re.ASCII
        if self.pattern.startswith("(?i)"):
            flags |= re.IGNORECASE
            self.at = 4
        while self.at < len(self.pattern):
            self.sign()
        if self.opened:
            raise self.unknown("a group that is not closed")
        try:
            return re.compile("".join(self.parts), flags)
        except re.error as error:
            raise self.unknown(str(error)) from None

    def unknown(self, what: str) -> NotProvedError:
        return NotProvedError(f"the pattern {self.pattern!r}: {what} at position {self.at + 1}")

    def add(self, part: str, *, repeats: bool = True) -> None:
        self.last = len(self.parts) if repeats else None
        self.parts.append(part)

    def sign(self) -> None:
        sign = self.pattern[self.at]
        if sign == "\\":
            self.add(self.escaped(inside=False))
        elif sign == "[":
            self.add(self.listed())
        elif sign == "(":
            self.open()
        elif sign == ")":
            self.close()
        elif sign in "*+?{":
            self.quantifier()
        else:
            self.at += 1
            if sign == ".":
                self.add(_NO_BREAK)
            elif sign == "^":
                self.add("\\A", repeats=False)
            elif sign == "$":
                self.add(_END, repeats=False)
            elif sign == "|":
                self.add("|", repeats=False)
            else:
                self.add(re.escape(sign))

    def escaped(self, *, inside: bool) -> str:
        letter = self.pattern[self.at + 1 : self.at + 2]
        if letter in _CLASSES and letter:
            part = "\\" + letter
        elif letter in _CONTROLS:
            part = _CONTROLS[letter]
        elif letter and letter.isascii() and not letter.isalnum():
            part = re.escape(letter)
        elif letter and letter in "123456789" and not inside and int(letter) <= self.groups:
            if self.pattern[self.at + 2 : self.at + 3].isdecimal():
                raise self.unknown("a reference of several digits")
            part = f"(?:\\{letter})"
        else:
            raise self.unknown(f"\\{letter}")
        self.at += 2
        return part

    def listed(self) -> str:
        """A class of characters: letters, ranges and escapes, without classes inside."""
        self.at += 1
        parts = ["["]
        if self.pattern.startswith("^", self.at):
            parts.append("^")
            self.at += 1
        while not self.pattern.startswith("]", self.at):
            sign = self.pattern[self.at : self.at + 1]
            if not sign or sign in "[&~^" or self.pattern.startswith("--", self.at):
                raise self.unknown(f"{sign or 'an open class'} in a class")
            if sign == "\\":
                parts.append(self.escaped(inside=True))
            else:
                self.at += 1
                parts.append("-" if sign == "-" else re.escape(sign))
        self.at += 1
        body = "".join(parts)
        if body in ("[", "[^") or re.search(r"\\[dDwWsS]-[^\]]|[^\[^]-\\[dDwWsS]", body):
            raise self.unknown("this class")
        return body + "]"

    def open(self) -> None:
        rest = self.pattern[self.at + 1 :]
        named = _NAMED.match(rest)
        self.opened.append(len(self.parts))
        if named is not None:
            self.parts.append(f"(?P<{named[1]}>")
            self.groups += 1
            self.at += 1 + named.end()
        elif rest.startswith(_GROUPS):
            self.parts.append("(" + rest[:2])
            self.at += 3
        elif rest.startswith("?"):
            raise self.unknown("(?")
        else:
            self.parts.append("(")
            self.groups += 1
            self.at += 1
        self.last = None

    def close(self) -> None:
        if not self.opened:
            raise self.unknown("a ) without a (")
        start = self.opened.pop()
        self.at += 1
        self.parts[start:] = ["".join([*self.parts[start:], ")"])]
        self.last = start

    def quantifier(self) -> None:
        if self.last is None:
            raise self.unknown("a quantifier without an operand")
        counted = _COUNT.match(self.pattern, self.at)
        sign = self.pattern[self.at]
        if sign == "{":
            if counted is None:
                raise self.unknown("{")
            sign = counted[0]
        inner = self.parts[self.last]
        if inner.startswith("("):
            try:
                empty = re.compile(inner, re.ASCII).fullmatch("") is not None
            except re.error:
                empty = True
            if empty or inner.startswith(("(?=", "(?!")):
                raise self.unknown("a repeated group that may be empty")
        self.at += len(sign)
        if self.pattern.startswith("?", self.at):
            sign += "?"
            self.at += 1
        elif self.pattern.startswith("+", self.at):
            raise self.unknown("a possessive quantifier")
        self.parts[self.last] += sign
        self.last = None


def replacement(text: str, groups: int) -> list[str | int]:
    """Cuts Java's replacement into texts and numbers of groups.

    Raises:
        NotProvedError: if Java refuses it, or it names a group.
    """
    parts: list[str | int] = []
    at = 0
    while at < len(text):
        sign = text[at]
        if sign == "\\":
            if at + 1 == len(text):
                raise NotProvedError("a replacement that ends in a backslash")
            parts.append(text[at + 1])
            at += 2
        elif sign == "$":
            at += 1
            number = text[at : at + 1]
            if not (number and number in "0123456789") or int(number) > groups:
                raise NotProvedError(f"the replacement {text!r}")
            at += 1
            while text[at : at + 1] and text[at] in "0123456789":
                if int(number + text[at]) > groups:
                    break
                number += text[at]
                at += 1
            parts.append(int(number))
        else:
            parts.append(sign)
            at += 1
    return parts
