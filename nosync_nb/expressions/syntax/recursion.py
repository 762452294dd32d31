"""A recursion guard: the nesting of an expression does not depend on the caller's stack.

Parsing and compiling follow the nesting of a text, some ten frames a step. Without the guard a
stage that was accepted from a shallow stack could not be opened from a deep one.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import ParamSpec, TypeVar

from nosync_nb.errors import ExpressionError

_P = ParamSpec("_P")
_T = TypeVar("_T")


def with_recursion_room(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Returns a function of a text that runs on a stack of its own if the caller's is too short.

    Raises:
        ExpressionError: if the text is nested too deeply for that as well.
    """

    @wraps(function)
    def called(*given: _P.args, **named: _P.kwargs) -> _T:
        try:
            return function(*given, **named)
        except (RecursionError, SyntaxError):
            pass
        with ThreadPoolExecutor(1) as own:
            try:
                return own.submit(function, *given, **named).result()
            except (RecursionError, SyntaxError):
                pass
        raise ExpressionError(
            f"expression {given[0]!r:.60} is nested too deeply",
            hint="compute a part of it first: with_columns(part='...')",
        )

    return called
