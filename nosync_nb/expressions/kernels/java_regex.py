"""Translates Java's regular expressions to Python's, if both have the same meaning.

A pattern is translated construct by construct. Constructs with the same meaning are copied; `.`,
`$` and named groups are rewritten. Any other construct is refused with its position. Then the
expression is left to Spark, regardless of its rows.

Patterns that may take exponential time, such as `(a+)+$`, are detected before they run. A
backtracking matcher tries every way to match a text. The number of ways is exponential if and only
if some position of the pattern can be left and reached again in two ways with the same text. A
position is a character of the pattern, and its followers are the characters that may come next
(Glushkov's automaton). A follower that results from two repetitions counts twice. Two ways appear
as a cycle among pairs of positions that contains a pair of equal positions and a pair of different
ones.

Patterns that refer to groups or have very many positions are not examined. They are considered
exponential if a repetition is inside another one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from re import _compiler, _parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

from nosync_nb.expressions.kernels.kernel import NotProvedError

_PLACES_MAX = 120
_STEPS_MAX = 200_000
_COPIES_MAX = 4
"""The greatest repetition count that is examined exactly; higher counts count as unbounded."""
_ALPHABET = "".join(map(chr, range(128))) + "\x85\u2028\u2029\u00e9\u4e2d"


class _TooManyError(Exception):
    """The pattern is too large or too complex to be examined."""


class _Part(NamedTuple):
    """A part of a pattern.

    Attributes:
        first: the positions with which a match may begin.
        last: the positions with which a match may end.
        empty: True if the part may match the empty text.
    """

    first: tuple[int, ...]
    last: tuple[int, ...]
    empty: bool


_NOTHING = _Part((), (), True)


@lru_cache(maxsize=1024)
def may_explode(pattern: re.Pattern[str]) -> bool:
    """Returns True if the time of a match may be exponential in the length of the text."""
    tree = _parser.parse(pattern.pattern, pattern.flags)
    if not _has_nested_choice(tree, inside=False):
        return False
    alphabet = _ALPHABET + "".join(c + c.swapcase() for c in pattern.pattern if ord(c) > 127)
    try:
        automaton = _Automaton(alphabet, pattern.flags)
        automaton.part(tree)
        return automaton.is_ambiguous()
    except _TooManyError:
        return True


_REPEATS = ("MAX_REPEAT", "MIN_REPEAT")


def _inner(value: Any) -> Iterator[Any]:
    """Yields the subpatterns within the argument of an item."""
    if isinstance(value, _parser.SubPattern):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _inner(each)


def _has_nested_choice(tree: Any, *, inside: bool) -> bool:
    """Returns True if a repetition contains another repetition or alternatives."""
    for code, value in tree:
        name = str(code)
        repeats = name in _REPEATS and value[1] > 1
        if inside and name in ("BRANCH", *_REPEATS):
            return True
        if any(_has_nested_choice(each, inside=inside or repeats) for each in _inner(value)):
            return True
    return False


class _Automaton:
    """The positions of a pattern, their characters, and how often each position follows another."""

    def __init__(self, alphabet: str, flags: int) -> None:
        self.alphabet = alphabet
        self.flags = flags
        self.sets: list[int] = []
        self.follows: list[dict[int, int]] = []

    def place(self, code: Any, value: Any) -> _Part:
        """Adds a position that matches one character, and returns it as a part."""
        if len(self.sets) >= _PLACES_MAX:
            raise _TooManyError
        number = len(self.sets)
        self.sets.append(self.characters(code, value))
        self.follows.append({})
        return _Part((number,), (number,), False)

    def characters(self, code: Any, value: Any) -> int:
        """Returns the characters of the alphabet that an item matches, as a bit set."""
        item = _parser.SubPattern(_parser.State(), [(code, value)])
        matches = _compiler.compile(item, self.flags).fullmatch
        return sum(1 << bit for bit, letter in enumerate(self.alphabet) if matches(letter))

    def link(self, before: _Part, after: _Part) -> None:
        for place in before.last:
            own = self.follows[place]
            for follower in after.first:
                own[follower] = own.get(follower, 0) + 1

    def joined(self, left: _Part, right: _Part) -> _Part:
        """Returns the concatenation of two parts, and links the positions between them."""
        self.link(left, right)
        first = left.first + right.first if left.empty else left.first
        last = left.last + right.last if right.empty else right.last
        return _Part(first, last, left.empty and right.empty)

    def part(self, tree: Any) -> _Part:
        """Adds the positions of a subpattern."""
        made = _NOTHING
        for code, value in tree:
            made = self.joined(made, self.item(str(code), code, value))
        return made

    def item(self, name: str, code: Any, value: Any) -> _Part:
        if name in ("LITERAL", "NOT_LITERAL", "IN", "ANY"):
            return self.place(code, value)
        if name == "SUBPATTERN":
            return self.part(value[-1])
        if name == "BRANCH":
            parts = [self.part(each) for each in value[1]]
            first = tuple(place for each in parts for place in each.first)
            last = tuple(place for each in parts for place in each.last)
            return _Part(first, last, any(each.empty for each in parts))
        if name in _REPEATS:
            return self.repeated(*value)
        if name in ("ASSERT", "ASSERT_NOT"):
            self.part(value[-1])
        elif name != "AT":
            raise _TooManyError
        return _NOTHING

    def repeated(self, least: int, most: int, tree: Any) -> _Part:
        """Adds the positions of a repetition."""
        if most > _COPIES_MAX:
            copy = self.part(tree)
            self.link(copy, copy)
            return copy._replace(empty=copy.empty or not least)
        part = _NOTHING
        for number in range(most):
            copy = self.part(tree)
            part = self.joined(part, copy._replace(empty=copy.empty or number >= least))
        return part

    def is_ambiguous(self) -> bool:
        """Returns True if one text leads from a position back to it in two ways."""
        every = range(len(self.sets))
        for cycle in _cycles({place: list(self.follows[place]) for place in every}):
            inner = {
                place: [each for each in self.follows[place] if each in cycle and self.sets[each]]
                for place in cycle
            }
            if any(self.follows[place][each] > 1 for place in cycle for each in inner[place]):
                return True
            if self._meets_itself(inner):
                return True
        return False

    def _meets_itself(self, inner: dict[int, list[int]]) -> bool:
        """Returns True if one text leads from a position of a cycle back to it in two ways."""
        pairs: dict[tuple[int, int], list[tuple[int, int]]] = {}
        waiting = [(place, place) for place in inner]
        steps = 0
        while waiting:
            pair = waiting.pop()
            if pair in pairs:
                continue
            steps += len(inner[pair[0]]) * len(inner[pair[1]])
            if steps > _STEPS_MAX:
                raise _TooManyError
            pairs[pair] = [
                (a, b)
                for a in inner[pair[0]]
                for b in inner[pair[1]]
                if self.sets[a] & self.sets[b]
            ]
            waiting += pairs[pair]
        return any(
            any(a == b for a, b in cycle) and any(a != b for a, b in cycle)
            for cycle in _cycles(pairs)
        )


def _cycles(follows: dict[Any, list[Any]]) -> list[set[Any]]:
    """Returns the strongly connected components with an inner edge, by Tarjan's algorithm.

    The algorithm is iterative, so that large graphs need no deep stack.
    """
    number: dict[Any, int] = {}
    low: dict[Any, int] = {}
    open_: list[Any] = []
    within: set[Any] = set()
    found: list[set[Any]] = []
    for root in follows:
        if root in number:
            continue
        path = [(root, iter(follows[root]))]
        number[root] = low[root] = len(number)
        open_.append(root)
        within.add(root)
        while path:
            node, followers = path[-1]
            follower = next(followers, None)
            if follower is None:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == number[node]:
                    found.append(_closed(open_, within, node))
            elif follower not in number:
                number[follower] = low[follower] = len(number)
                open_.append(follower)
                within.add(follower)
                path.append((follower, iter(follows[follower])))
            elif follower in within:
                low[node] = min(low[node], number[follower])
    return [each for each in found if any(b in each for a in each for b in follows[a])]


def _closed(open_: list[Any], within: set[Any], node: Any) -> set[Any]:
    """Removes a finished component from the stack, and returns it."""
    component = set()
    while node not in component:
        component.add(open_.pop())
    within.difference_update(component)
    return component


_NO_BREAK = "[^\\n\\r\\u0085\\u2028\\u2029]"
_END = "(?=(?:\\r\\n|(?<!\\r)\\n|[\\r\\u0085\\u2028\\u2029])?\\Z)"
_CLASSES = "dDwWsS"
_CONTROLS = {"t": "\\t", "n": "\\n", "r": "\\r", "f": "\\f"}
_COUNT = re.compile(r"\{(\d{1,4})(,(\d{0,4}))?\}")
_NAMED = re.compile(r"\?<([a-zA-Z][a-zA-Z0-9]*)>")
_GROUPS = ("?:", "?=", "?!")


@lru_cache(maxsize=1024)
def compiled(pattern: str) -> re.Pattern[str]:
    """Returns a Java pattern as a compiled Python pattern.

    Raises:
        NotProvedError: if the pattern has another meaning in Python or none, or if a match might
            take exponential time. While Python matches a pattern, nothing else runs in this
            process, not even the handler of Ctrl-C.
    """
    translated = _JavaReader(pattern).read()
    if may_explode(translated):
        raise NotProvedError(
            f"the pattern {pattern!r}: nested repetitions that can match a text in"
            " exponentially many ways"
        )
    return translated


def may_be_empty(pattern: re.Pattern[str]) -> bool:
    """Returns True if a translated pattern may match the empty text."""
    text = pattern.pattern.replace(_END, "").replace("\\A", "")
    if "(?=" in text or "(?!" in text:
        return True
    return re.compile(text, pattern.flags).fullmatch("") is not None


class _JavaReader:
    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0
        self.parts: list[str] = []
        self.opened: list[int] = []  # indexes of the parts that open the unclosed groups
        self.groups = 0
        self.last: int | None = None  # index of the part to which a quantifier would apply

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
        """Translates a class of letters, ranges and escapes, without nested classes."""
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
    """Splits Java's replacement into texts and the numbers of groups.

    Raises:
        NotProvedError: if Java refuses the replacement, or if it refers to a group by name.
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
