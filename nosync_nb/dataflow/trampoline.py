"""Recursion without the Python stack: a function yields the calls that it needs.

The nesting of a definition depends on its author, and a definition may come from a log. The depth
of Python's stack depends on the caller. Neither limits the other.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

_T = TypeVar("_T")

Call = Generator[Any, Any, _T]
"""A suspended call: yields the calls whose results it needs, and receives each result."""


def run_trampoline(call: Call[_T]) -> _T:
    """Returns the result of a call and runs all calls that it yields, at one depth of the stack.

    An exception ends all of them; suspended calls cannot catch it.
    """
    waiting: list[Call[Any]] = [call]
    result: Any = None
    while waiting:
        try:
            inner = waiting[-1].send(result)
        except StopIteration as end:
            waiting.pop()
            result = end.value
        else:
            waiting.append(inner)
            result = None
    return result  # type: ignore[no-any-return]
