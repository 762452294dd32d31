"""Arithmetic of counts: exact sums and products, or an error that names the row.

Counts are 64-bit integers, which wrap around silently in numpy. Callers add context to the error: a
batch adds the row, the dataflow adds the stage, and a loop reports that it does not converge.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from nosync_nb.errors import ExpressionError

Counts = npt.NDArray[np.int64]

_FEW = 64
_LIMIT = 2**63
_SMALL = 2**31


class CountError(ExpressionError):
    """The count of a row does not fit into 64 bits.

    Attributes:
        row: the values of the row; None if they are not known yet.
        at: the index of the run, sum or product that overflowed.
    """

    def __init__(self, at: int = 0, row: tuple[Any, ...] | None = None) -> None:
        self.at = at
        self.row = row
        shown = "a row" if row is None else f"row {row!r}"
        super().__init__(
            f"{shown} is counted more than 2**63 - 1 times",
            hint="drop the copies before this step, for example with distinct()",
        )


def add_runs(diff: Counts, starts: Counts) -> Counts:
    """Returns the sum of each run of counts. Run `i` is `diff[starts[i]:starts[i + 1]]`, not empty.

    Raises:
        CountError: if a sum does not fit into 64 bits.
    """
    sums: Counts = np.add.reduceat(diff, starts)
    n = len(diff)
    if n <= _FEW:
        size = diff.astype(np.float64)
        most = float(size.dot(size)) * n  # Cauchy-Schwarz: no sum squared exceeds it
    else:  # without `dot`, which would start the threads of BLAS
        most = (float(max(int(diff.max()), -int(diff.min()))) * n) ** 2
    if most >= 2.0**125:
        exact = np.add.reduceat(diff.astype(object), starts)
        _check(exact, sums)
    return sums


def sums(left: Counts, right: Counts) -> Counts:
    """Returns the pairwise sums of counts.

    Raises:
        CountError: if a sum does not fit into 64 bits.
    """
    result: Counts = left + right
    if _small(left, right):
        return result
    if len(result) and _greatest(left) + _greatest(right) >= _LIMIT:
        _check(left.astype(object) + right.astype(object), result)
    return result


def add_at(target: Counts, index: Counts, values: Counts) -> None:
    """Adds each value to the element at its index.

    Raises:
        CountError: if a sum does not fit into 64 bits.
    """
    if not len(values):
        return
    most = _greatest(values) * len(values) + _greatest(target)
    if most < _LIMIT:
        np.add.at(target, index, values)
        return
    exact = target.astype(object)
    np.add.at(exact, index, values.astype(object))
    np.add.at(target, index, values)
    _check(exact, target)


def products(left: Counts, right: Counts) -> Counts:
    """Returns the pairwise products of counts.

    Raises:
        CountError: if a product does not fit into 64 bits.
    """
    result: Counts = left * right
    if _small(left, right):
        return result
    if len(result) and _greatest(left) * _greatest(right) >= _LIMIT:
        _check(left.astype(object) * right.astype(object), result)
    return result


def _small(left: Counts, right: Counts) -> bool:
    """Returns True for few counts far from the limit, the common case. Cost: 1 us."""
    if not 0 < len(left) <= _FEW:
        return False
    both: list[int] = left.tolist() + right.tolist()
    return max(both) < _SMALL and min(both) > -_SMALL


def _greatest(counts: Counts) -> int:
    """Returns the greatest absolute value of the counts."""
    if len(counts) <= _FEW:
        few: list[int] = counts.tolist()
        return max(max(few), -min(few))
    return max(int(counts.max()), -int(counts.min()))


def _check(exact: npt.NDArray[np.object_], made: Counts) -> None:
    """Raises CountError for the first result that differs from the exact one."""
    wrong = (exact != made).nonzero()[0]
    if len(wrong):
        raise CountError(int(wrong[0]))


def named_count_error(error: CountError, stage: str, operator: str) -> ExpressionError:
    """Returns the error with the stage and the operator in which it occurred."""
    where = f"stage '{stage}': " if stage else ""
    return ExpressionError(f"{where}{operator}: {error}", hint=error.hint)
