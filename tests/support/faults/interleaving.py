"""Interleavings: one thread stops before a line while another one runs to its end.

Racing threads fail in few orders of their steps, which a test that starts both rarely meets. Here
every line of one thread is tried. A thread that waits for the stopped one fails after a minute.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import nosync_nb
from faults.every_opcode import left_out

PATIENCE_S = 60
TOP = Path(nosync_nb.__file__).parents[1]


@contextmanager
def lines(modules: Collection[str], visit: Callable[[int], Any]) -> Iterator[None]:
    """Calls `visit` before each line that this thread runs in these modules of the engine.

    The exit of a `with` block, a line since Python 3.12, is skipped: no interrupt comes there.
    """
    names = tuple(f"nosync_nb/{module}.py" for module in modules)
    assert all((TOP / name).exists() for name in names), names
    number = count()

    def inside(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line" and frame.f_lasti not in left_out(frame.f_code):
            sys.settrace(None)
            try:
                visit(next(number))
            finally:
                sys.settrace(begun)
        return inside

    def begun(frame: FrameType, event: str, argument: Any) -> Any:
        return inside if frame.f_code.co_filename.endswith(names) else None

    before = sys.gettrace()
    sys.settrace(begun)
    try:
        yield
    finally:
        sys.settrace(before)


def at_every_line(
    modules: Collection[str], act: Callable[[], Any], other: Callable[[], Any]
) -> list[Any]:
    """Acts once, and runs `other` in another thread before each line; returns its results."""
    results = []
    with ThreadPoolExecutor(1) as pool:

        def visit(_: int) -> None:
            results.append(pool.submit(other).result(PATIENCE_S))

        with lines(modules, visit):
            act()
    return results


def at_one_line_after_the_other(
    modules: Collection[str], act: Callable[[], Any], other: Callable[[], Any]
) -> list[Any]:
    """Acts repeatedly; the n-th time another thread runs `other` before the n-th line.

    The number of repetitions is that of the lines of the first call.
    """
    results: list[Any] = []
    met: list[int] = []
    with lines(modules, met.append):
        results.append(act())
    with ThreadPoolExecutor(1) as pool:
        for wanted in met:

            def visit(number: int, wanted: int = wanted) -> None:
                if number == wanted:
                    pool.submit(other).result(PATIENCE_S)

            with lines(modules, visit):
                results.append(act())
    return results
