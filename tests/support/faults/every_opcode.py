"""Every opcode: an exception is raised before the n-th opcode that the engine executes.

A signal handler, an exception set by another thread or a refused allocation interrupts a program
between two opcodes. A trace function raises such an error here, in frames of the engine's files.
After the first raise nothing is traced any more; other threads never are.

Three places are skipped. In the exit of a `with` block, up to the call of `__exit__`, no code could
answer the error: a lock would stay locked. At the end of an `except` the thread would consider the
exception handled. Opcodes without effect are never interrupted: the interpreter checks for signals
only after calls, jumps back and at function entries.
"""

from __future__ import annotations

import dis
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import CodeType, FrameType
from typing import Any

import nosync_nb

ENGINE = os.path.join(os.path.dirname(os.path.abspath(nosync_nb.__file__)), "")
_SHUFFLES = {"SWAP", "COPY", "NOP", "PRECALL", "ROT_TWO", "ROT_THREE"}
_TOOL = 4  # of those that sys.monitoring has none of a name of its own
_NEVER = {"NOP", "PUSH_EXC_INFO", "POP_EXCEPT", "WITH_EXCEPT_START"}


class Struck(BaseException):
    """An error from outside that no `except Exception` catches, like KeyboardInterrupt."""


@contextmanager
def traced(visit: Callable[[int], None]) -> Iterator[None]:
    """Calls `visit` before each opcode that this thread executes in the engine.

    An exception of `visit` is raised there, and ends the tracing.
    """
    number = 0

    def met(code: CodeType, offset: int) -> None:
        nonlocal number
        if offset not in left_out(code):
            number += 1
            visit(number)

    collects = gc.isenabled()
    gc.disable()  # else what another test has left ends in the middle, and is struck instead
    try:
        with _traced(met) if sys.version_info < (3, 12) else _monitored(met):
            yield
    finally:
        if collects:
            gc.enable()


@contextmanager
def _traced(met: Callable[[CodeType, int], None]) -> Iterator[None]:
    def inside(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode":
            met(frame.f_code, frame.f_lasti)
        return inside

    def begun(frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(ENGINE):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return inside

    before = sys.gettrace()
    sys.settrace(begun)
    try:
        yield
    finally:
        sys.settrace(before)


@contextmanager
def _monitored(met: Callable[[CodeType, int], None]) -> Iterator[None]:
    monitoring: Any = vars(sys)["monitoring"]
    thread, ended = threading.get_ident(), False

    def inside(code: CodeType, offset: int) -> Any:
        nonlocal ended
        if not code.co_filename.startswith(ENGINE):
            return monitoring.DISABLE
        if not ended and threading.get_ident() == thread:
            try:
                met(code, offset)
            except BaseException:
                ended = True
                raise
        return None

    monitoring.use_tool_id(_TOOL, "every opcode")
    monitoring.register_callback(_TOOL, monitoring.events.INSTRUCTION, inside)
    monitoring.set_events(_TOOL, monitoring.events.INSTRUCTION)
    try:
        yield
    finally:
        monitoring.set_events(_TOOL, 0)
        monitoring.restart_events()
        monitoring.free_tool_id(_TOOL)


def count(act: Callable[[], Any], probe: Callable[[], Any]) -> tuple[int, list[int]]:
    """Counts the opcodes of a call, and lists those before which the probe's answer changed."""
    passed, changed, said = 0, [], probe()

    def visit(number: int) -> None:
        nonlocal passed, said
        passed = number
        now = probe()
        if now != said:
            said = now
            changed.append(number)

    with traced(visit):
        act()
    return passed, changed


def strike(act: Callable[[], Any], at: int, error: BaseException) -> BaseException | None:
    """Calls `act` and raises an error before one opcode; returns the error that came out, if
    any.
    """

    def visit(number: int) -> None:
        if number == at:
            raise error

    try:
        with traced(visit):
            act()
    except BaseException as came:
        if came is not error and error not in _causes(came):
            raise
        return came
    return None


@cache
def left_out(code: CodeType) -> frozenset[int]:
    """The offsets of a code object that are skipped, mostly the exits of its `with` blocks."""
    places: set[int] = set()
    every = list(dis.get_instructions(code))
    for i, each in enumerate(every):
        if each.opname in _NEVER:
            places.add(each.offset)
        at = i - 1
        while at >= 0 and every[at].opname in _SHUFFLES:
            at -= 1
        nones = every[max(at - 2, 0) : at + 1]
        if each.opname != "CALL" or [n.argval for n in nones] != [None] * 3:
            continue
        if any(n.opname != "LOAD_CONST" for n in nones):
            continue
        at -= 3
        while at >= 0 and every[at].opname in _SHUFFLES:
            at -= 1
        places.update(one.offset for one in every[at + 1 : i + 1])
    return frozenset(places)


def _causes(error: BaseException) -> list[BaseException]:
    causes = [each for each in (error.__cause__, error.__context__) if each is not None]
    return [*causes, *(one for each in causes for one in _causes(each))]
