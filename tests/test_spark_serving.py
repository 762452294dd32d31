"""What serving leaves behind: files for readers go when no reader needs them any more."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nosync_nb.batch import Batch, Layout, Updates, arrange
from nosync_nb.rows import Schema
from nosync_nb.spark import serving
from nosync_nb.spark.serving import Server, Snapshot
from nosync_nb.spark.tasks import Stored
from nosync_nb.trace import Layer, Trace

SCHEMA = Schema.parse("k bigint")
LAYOUT = Layout(SCHEMA.types)
LARGE = 60_000
"""Rows that stay in memory and are too many to travel."""


def batch(start: int, count: int) -> Batch:
    return arrange(LAYOUT, Updates([np.arange(start, start + count)], np.ones(count, np.int64)))


class Session:
    """A session as its server sees it; `traces` are its stages as of now."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.epoch = 0
        self.traces: dict[str, Trace] = {}

    def snapshot(self, stage: str, at: Any) -> Snapshot:
        return Snapshot(self.epoch, SCHEMA, self.traces[stage], self.folder)

    def commit(self, stage: str, *batches: Batch) -> None:
        self.epoch += 1
        layers = (Layer(i, i + 1, (each,)) for i, each in enumerate(batches))
        self.traces[stage] = Trace(LAYOUT, tuple(layers))

    def files(self) -> set[str]:
        return set(os.listdir(self.folder))


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(tmp_path)


@pytest.fixture
def server(session: Session) -> Iterator[Server]:
    server = Server(session.folder, session.snapshot)
    yield server
    server.close()


def rows(session: Session, trace: Stored) -> int:
    return trace.cut(session.folder, 0, 2**64).rows_count


def test_many_epochs_leave_the_files_of_the_last_answer(session: Session, server: Server) -> None:
    for epoch in range(1, 30):
        session.commit("big", batch(epoch, LARGE), batch(-epoch, 10))
        with serving.asked(session.folder, "big") as found:
            assert rows(session, found.trace) == LARGE + 10
        assert len(session.files()) == 1
    server.close()
    assert session.files() == set()


def test_small_layers_travel_however_many_were_served(session: Session, server: Server) -> None:
    for epoch in range(400):
        session.commit("some", batch(epoch, 2000))
        with serving.asked(session.folder, "some") as found:
            assert rows(session, found.trace) == 2000
    assert session.files() == set()


def test_a_layer_is_written_once_however_often_it_is_read(session: Session, server: Server) -> None:
    first = batch(0, LARGE)
    session.commit("big", first)
    session.traces["other"] = session.traces["big"]
    with serving.asked(session.folder, "big"):
        written = session.files()
    session.traces["big"] = session.traces["big"].appended(Layer(1, 2, (batch(LARGE, 10),)))
    with serving.asked(session.folder, "big") as found:
        assert rows(session, found.trace) == LARGE + 10
    assert session.files() == written
    assert len(written) == 1


def test_what_is_being_read_stays(session: Session, server: Server) -> None:
    session.commit("big", batch(0, LARGE))
    with serving.asked(session.folder, "big") as old:
        for epoch in range(1, 5):
            session.commit("big", batch(epoch, LARGE))
            serving.ask(session.folder, "big")
        assert len(session.files()) == 2
        assert rows(session, old.trace) == LARGE
        server.close()
        assert rows(session, old.trace) == LARGE
    assert session.files() == set()


def test_a_stage_that_is_dropped_leaves_nothing(session: Session, server: Server) -> None:
    session.commit("big", batch(0, LARGE))
    serving.ask(session.folder, "big")
    assert len(session.files()) == 1
    server.forget("big")
    assert session.files() == set()
