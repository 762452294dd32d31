"""Inside: who does the work of a session, for tests that look at how it is done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import pytest

from nosync_nb import Session
from nosync_nb.dataflow.graph import Graph
from nosync_nb.dataflow.snapshot import Snapshot
from nosync_nb.dataflow.stage import Stage
from nosync_nb.session.audits import Audits
from nosync_nb.session.garbage import Garbage
from nosync_nb.session.gate import Gate
from nosync_nb.session.host import SessionHost
from nosync_nb.session.inputs import Inputs
from nosync_nb.session.listeners import Listeners
from nosync_nb.session.loads import Loads
from nosync_nb.session.names import Names
from nosync_nb.session.publisher import Publisher
from nosync_nb.session.sealing import Signer
from nosync_nb.session.session import owners_of
from nosync_nb.session.upkeep import Upkeep
from nosync_nb.session.worker import Worker
from nosync_nb.session.works import Works
from nosync_nb.spark.link import Link
from nosync_nb.store.store import Store
from nosync_nb.trace import Trace


class Inside(NamedTuple):
    """Those that own what a session has."""

    gate: Gate
    publisher: Publisher
    upkeep: Upkeep
    signer: Signer
    link: Link
    listeners: Listeners
    names: Names
    inputs: Inputs
    loads: Loads
    host: SessionHost
    audits: Audits
    worker: Worker
    works: Works

    @property
    def store(self) -> Store:
        """The folder."""
        return self.publisher.store

    @property
    def snapshot(self) -> Snapshot:
        """What readers see."""
        return self.publisher.snapshot

    @property
    def graph(self) -> Graph:
        """The nodes of it."""
        return self.publisher.snapshot.graph

    @property
    def catalog(self) -> Mapping[str, Stage]:
        """The stages of it."""
        return self.publisher.snapshot.catalog

    @property
    def traces(self) -> Mapping[int, Trace]:
        """The traces of it, by number."""
        return self.publisher.snapshot.version.traces

    @property
    def garbage(self) -> Garbage:
        """The files on their way out."""
        return self.publisher.garbage


def inside(session: Session) -> Inside:
    """Those of a session."""
    owners = owners_of(session)
    return Inside(*(getattr(owners, name) for name in Inside._fields))


@contextmanager
def spark_unseen() -> Iterator[None]:
    """Hides a Spark session that is there from those who open one of ours without it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Link, "_known", lambda link: link._given is not None)
        yield
