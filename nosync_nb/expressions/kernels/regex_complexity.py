"""Detects regular expressions that may take exponential time, such as `(a+)+$`, before they run.

A backtracking matcher tries every way to match a text. The number of ways is exponential if and
only if some position of the pattern can be left and reached again in two ways with the same text. A
position is a character of the pattern, and its followers are the characters that may come next
(Glushkov's automaton); a follower that two repetitions give counts twice. Two ways appear as a
cycle among pairs of positions that leads through a pair of equal positions and a pair of different
ones.

Patterns that refer to groups or have very many positions are not examined. They count as
exponential if a repetition is inside another one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from re import _compiler, _parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

_PLACES_MAX = 120
_STEPS_MAX = 200_000
_COPIES_MAX = 4
"""A repetition with a higher count is examined as an unbounded one."""
_ALPHABET = "".join(map(chr, range(128))) + "\x85\u2028\u2029\u00e9\u4e2d"


class _TooManyError(Exception):
    """The pattern is not examined."""


class _Part(NamedTuple):
    """A part of a pattern: its first and last positions, and True if it may match nothing."""

    first: tuple[int, ...]
    last: tuple[int, ...]
    empty: bool


_NOTHING = _Part((), (), True)


@lru_cache(maxsize=1024)
def may_explode(pattern: re.Pattern[str]) -> bool:
    """Returns True if matching may take time exponential in the length of the text."""
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
    """The patterns within the argument of an item."""
    if isinstance(value, _parser.SubPattern):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _inner(each)


def _has_nested_choice(tree: Any, *, inside: bool) -> bool:
    """Returns True if a repetition contains another one, or alternatives."""
    for code, value in tree:
        name = str(code)
        repeats = name in _REPEATS and value[1] > 1
        if inside and name in ("BRANCH", *_REPEATS):
            return True
        if any(_has_nested_choice(each, inside=inside or repeats) for each in _inner(value)):
            return True
    return False


class _Automaton:
    """The positions of a pattern, their characters, and the counts of their followers."""

    def __init__(self, alphabet: str, flags: int) -> None:
        self.alphabet = alphabet
        self.flags = flags
        self.sets: list[int] = []
        self.follows: list[dict[int, int]] = []

    def place(self, code: Any, value: Any) -> _Part:
        """Adds a position that matches one character."""
        if len(self.sets) >= _PLACES_MAX:
            raise _TooManyError
        number = len(self.sets)
        self.sets.append(self.characters(code, value))
        self.follows.append({})
        return _Part((number,), (number,), False)

    def characters(self, code: Any, value: Any) -> int:
        """Returns the characters of the alphabet that an item matches, as bits."""
        item = _parser.SubPattern(_parser.State(), [(code, value)])
        matches = _compiler.compile(item, self.flags).fullmatch
        return sum(1 << bit for bit, letter in enumerate(self.alphabet) if matches(letter))

    def link(self, before: _Part, after: _Part) -> None:
        for place in before.last:
            own = self.follows[place]
            for follower in after.first:
                own[follower] = own.get(follower, 0) + 1

    def joined(self, left: _Part, right: _Part) -> _Part:
        """Returns one part after another."""
        self.link(left, right)
        first = left.first + right.first if left.empty else left.first
        last = left.last + right.last if right.empty else right.last
        return _Part(first, last, left.empty and right.empty)

    def part(self, tree: Any) -> _Part:
        """Adds the positions of a pattern."""
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
        """Returns a part several times."""
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
        """Returns True if a text leads from a position back to it in two ways."""
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
        """Returns True if two ways with one text lead from a position of a cycle back to it."""
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
    """The strongly connected components with an edge inside (Tarjan's algorithm, iterative)."""
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
    """Takes a finished component from the stack."""
    component = set()
    while node not in component:
        component.add(open_.pop())
    within.difference_update(component)
    return component
