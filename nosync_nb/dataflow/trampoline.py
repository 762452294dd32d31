"""Recursion that does not take the stack: a function that yields what it would have called.

How deep a description is nested is up to whoever wrote it, and may come from a log; how deep
Python's stack is, to whoever calls. Neither decides whether the other works.

Short, and on its own: it knows nothing of what compiler, loops and fitting walk through with it.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

_T = TypeVar("_T")

Call = Generator[Any, Any, _T]
"""A call in the making: yields the calls whose results it needs, and is sent each result."""


def run_trampoline(call: Call[_T]) -> _T:
    """The result of a call, and of all that it yields, at one depth of the stack.

    An exception ends them all: those that wait do not see it.
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
