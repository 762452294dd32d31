"""What a proved function is made of: kernels over values, without any thought of nulls.

A kernel is called with the values of its arguments, never told which rows are null; nulls of a
strict function are where an argument is null, and whatever it computed there is thrown away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

Bounds = tuple[int, int]


@dataclass(frozen=True)
class Check:
    """A reason to raise: `bad` tells for which rows."""

    bad: Callable[..., Any]
    reason: str


@dataclass(frozen=True)
class Kernel:
    """A strict function of fixed types: numpy in, numpy out.

    Attributes:
        run: the values; called even on rows that are null, never on rows that `checks` refuse.
        checks: in the order in which Spark looks.
        bounds: result bounds from argument bounds, for integers that may overflow; then the first
            check is about overflow alone and is left out where bounds prove it needless.
        right_first: whether Spark evaluates the second argument before the first.
        floats: whether `run` may produce -0.0, NaN or a floating-point warning.
        missing: tells where the result is null though no argument is; what `run` gives there is
            thrown away.
        beyond: tells which results do not fit the type: they are refused, or null if `lenient`.
    """

    run: Callable[..., Any]
    checks: tuple[Check, ...] = ()
    bounds: Callable[..., Bounds] | None = None
    right_first: bool = False
    floats: bool = False
    missing: Callable[..., Any] | None = None
    beyond: Callable[[Any], Any] | None = None
    lenient: bool = False

    @property
    def raises(self) -> bool:
        """Whether it may refuse a row."""
        return bool(self.checks) or (self.beyond is not None and not self.lenient)


class InvalidError(Exception):
    """A text kernel refuses a value; the message is the reason."""


@dataclass(frozen=True)
class TextKernel:
    """A strict function with text among its arguments or as its result.

    Attributes:
        row: one row, Python values in and out (decimals as whole numbers of their last place);
            raises `InvalidError`.
        large: Arrow arrays (text), numpy arrays (fixed types) and scalars (literals) in; an Arrow
            or numpy array out. None: `row` on each distinct row.
        raises: whether `row` may raise `InvalidError`.
        nullable: whether `row` may return None.
        lenient: what is run where it is tried; None: `row`, and null where that refuses.
        eager: whether Spark evaluates every argument, also behind one that is null.
    """

    row: Callable[..., Any]
    large: Callable[..., Any] | None = None
    raises: bool = False
    nullable: bool = False
    lenient: TextKernel | None = None
    eager: bool = False


def tried(kernel: Kernel | TextKernel) -> Kernel | TextKernel:
    """Returns the kernel that gives null where a kernel refuses a row."""
    if isinstance(kernel, Kernel):
        return _tried_numbers(kernel) if kernel.raises else kernel
    if not kernel.raises:
        return kernel
    if kernel.lenient is not None:
        return kernel.lenient
    given = kernel.row

    def row(*values: Any) -> Any:
        try:
            return given(*values)
        except InvalidError:
            return None

    return TextKernel(row, kernel.large, nullable=True)


def _tried_numbers(kernel: Kernel) -> Kernel:
    if not kernel.checks:
        return replace(kernel, lenient=True)
    reasons = [check.bad for check in kernel.checks]
    if kernel.missing is not None:
        reasons.append(kernel.missing)

    def missing(*values: Any) -> Any:
        return reduce(lambda a, b: a | b, [bad(*values) for bad in reasons])

    return replace(kernel, checks=(), bounds=None, missing=missing, lenient=True, floats=True)
