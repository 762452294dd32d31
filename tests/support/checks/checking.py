"""Compares a stage with its model over a history of changes to its inputs.

The stage is defined before the first epoch or between two, so the test covers both backfills and
changes. Besides the rows it compares the changes, every past epoch, and the same expression without
a name.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import strategies as st
from internals import drain_background, merge_trace, traces_of
from models import model
from models.model import Bag, bag
from strategies import Epoch, ddl, histories

import nosync_nb
from nosync_nb import Collection, Input, Session
from nosync_nb.collections.session_protocol import session_of
from nosync_nb.session.maintenance import maintenance
from nosync_nb.trace import Merge, Trace

Build = Callable[..., Collection]
Oracle = Callable[..., Bag]

EDGES = "src int, dst int"


def closure(edges: Collection) -> Collection:
    """All paths over edges."""
    onward = edges.rename({"src": "mid", "dst": "end"})
    return edges.iterate(
        lambda paths: (
            paths.join(onward, on={"dst": "mid"})
            .select("src", "end as dst")
            .concat(edges)
            .distinct()
        )
    )


@contextmanager
def opened() -> Iterator[Session]:
    with tempfile.TemporaryDirectory() as folder, nosync_nb.open(f"{folder}/log") as session:
        yield session
        assert session.spark is None, "these tests are of the engine alone"


def held(collection: Collection, at: int | None = None) -> Bag:
    return bag(map(model.typed, collection.rows(at=at)))


def expected(wanted: Bag) -> Bag:
    return bag(map(model.typed, model.rows(wanted)))


def changed(collection: Collection, after: int, upto: int) -> Bag:
    table = collection.changes(after=after, upto=upto).to_pydict()
    diffs = table.pop("diff")
    return model.summed(
        (model.typed(row), n) for *row, n in zip(*table.values(), diffs, strict=True)
    )


def count(collection: Collection, at: Any = None) -> dict[Any, int]:
    """The rows with their counts, for rows whose equality in Python is that of the engine."""
    return dict(Counter(tuple(row) for row in collection.rows(at=at)))


def net(collection: Collection) -> dict[Any, int]:
    """The net changes of the last epoch."""
    now = session_of(collection).epoch(None)
    table = collection.changes(after=now - 1, upto=now).to_pydict()
    return {tuple(row[:-1]): row[-1] for row in zip(*table.values(), strict=True)}


def change(session: Session, source: Input, diffs: Mapping[Any, int]) -> None:
    for row, n in diffs.items():
        (source.insert if n > 0 else source.remove)([row] * abs(n))
    session.commit()


def merge_all(session: Session) -> None:
    """Merges all layers of every trace into one, as the worker does."""

    def everything(trace: Trace) -> Merge | None:
        return Merge(0, len(trace.layers)) if len(trace.layers) > 1 else None

    drain_background(session, 60)  # its current merge must not run twice
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maintenance, "plan", everything)
        for number in traces_of(session):
            merge_trace(session, number)
    assert {len(trace.layers) for trace in traces_of(session).values()} <= {0, 1}


def apply(session: Session, inputs: Mapping[str, Any], epoch: Epoch) -> None:
    for name, calls in epoch.calls.items():
        for change in calls:
            (inputs[name].insert if change.insert else inputs[name].remove)(change.rows)
    session.commit()


def check(
    history: Sequence[Epoch],
    schemas_: Mapping[str, str],
    build: Build,
    oracle: Oracle,
    defined_at: int = 0,
) -> None:
    """Runs a history; the stage must equal the oracle at every epoch from `defined_at` on."""
    with opened() as session:
        inputs = {name: session.input(name, schema) for name, schema in schemas_.items()}
        stage = session.stage("result", build(*inputs.values())) if not defined_at else None
        wanted = {0: oracle(*(bag() for _ in inputs))}
        for number, epoch in enumerate(history, 1):
            apply(session, inputs, epoch)
            wanted[number] = oracle(*(epoch.after[name] for name in inputs))
            if number == defined_at:
                stage = session.stage("result", build(*inputs.values()))
            if stage is not None:
                assert held(stage) == expected(wanted[number])
        assert stage is not None
        for number in range(defined_at, len(history) + 1):
            assert held(stage, at=number) == expected(wanted[number])
        for number in range(defined_at + 1, len(history) + 1):
            new, old = expected(wanted[number]), expected(wanted[number - 1])
            assert changed(stage, number - 1, number) == model.concat(new, model.negated(old))
        assert held(build(*inputs.values())) == expected(wanted[len(history)])


def run(
    data: st.DataObject,
    inputs: Mapping[str, Sequence[str]],
    build: Build,
    oracle: Oracle,
    **options: Any,
) -> None:
    """Draws a history over inputs of these column types and checks it."""
    history = data.draw(histories(inputs, **options), label="history")
    defined_at = data.draw(st.integers(0, len(history)), label="defined at")
    prefixes = dict(zip(inputs, ("c", "d"), strict=False))
    named = {name: ddl(of, prefixes[name]) for name, of in inputs.items()}
    check(history, named, build, oracle, defined_at)
