"""Switches of the planner: definitions unplanned, or with every arrangement available."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from nosync_nb.collections.definition import Definition
from nosync_nb.dataflow import cardinality, compiler
from nosync_nb.dataflow.optimizer.multiway_joins import Lookup


@contextmanager
def planless(*, off: bool = True) -> Iterator[None]:
    """Compiles definitions without a plan; with `off=False` it does nothing."""
    if not off:
        yield
        return

    def as_written(tree: Definition, *_: object) -> Definition:
        return tree

    with mock.patch.object(compiler, "plan_definition", as_written):
        yield


class Everything(frozenset[Lookup]):
    """Named collections that have every arrangement."""

    def __rand__(self, other: frozenset[Lookup]) -> frozenset[Lookup]:  # type: ignore[override]
        return other


@contextmanager
def granted(*, off: bool = False) -> Iterator[None]:
    """Compiles definitions as if other stages had every requested arrangement."""
    if off:
        yield
        return
    with mock.patch.object(compiler, "arrangements_of_others", return_value=Everything()):
        yield


@contextmanager
def weighed(*, off: bool = False) -> Iterator[None]:
    """Compiles definitions as if lookups were always cheaper than stored rows."""
    if off:
        yield
        return
    with (
        mock.patch.object(cardinality, "LEAST_BYTES", 0),
        mock.patch.object(cardinality, "CLEARLY", float("inf")),
    ):
        yield
