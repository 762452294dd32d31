"""Kernels: proved functions over values, without any handling of nulls.

A kernel gets the values of its arguments, but not their null masks. A strict function is null where
an argument is, and its result there is discarded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

Bounds = tuple[int, int]


@dataclass(frozen=True)
class Check:
    """A reason to raise: `bad` returns the mask of its rows."""

    bad: Callable[..., Any]
    reason: str


@dataclass(frozen=True)
class Kernel:
    """A strict function of fixed types: numpy in, numpy out.

    Attributes:
        run: the values; called even on rows that are null, never on rows that `checks` refuse.
        checks: in the order in which Spark checks.
        bounds: result bounds from argument bounds, for integers that may overflow; then the first
            check is about overflow alone and is skipped where bounds prove it needless.
        right_first: True if Spark evaluates the second argument before the first.
        floats: True if `run` may produce -0.0, NaN or a floating-point warning.
        missing: a mask of the rows whose result is null though no argument is; the values of `run`
            there are discarded.
        beyond: a mask of the results that do not fit the type: they are refused, or null if
            `lenient`.
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
        """True if it may refuse a row."""
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
        raises: True if `row` may raise `InvalidError`.
        nullable: True if `row` may return None.
        lenient: the function for `try_` calls; None: `row`, and null where that refuses.
        eager: True if Spark evaluates every argument, also those after a null one.
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
