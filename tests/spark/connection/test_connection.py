"""The Spark connection of a session: concurrent changes, without Spark."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from internals import services_of

import nosync_nb
from nosync_nb import Session


class SlowViews:
    """Views with a slow `create`; counts concurrent calls."""

    ended = False
    entered = most = 0

    def __init__(self, spark: Any, *_: Any) -> None:
        self.spark = spark
        self.names: set[str] = set()
        self.begun, self.go_on = threading.Event(), threading.Event()

    def name_conflict(self, name: str) -> None:
        return None

    def create(self, name: str, schema: object) -> bool:
        self.entered += 1
        self.most = max(self.most, self.entered)
        self.begun.set()
        self.go_on.wait(1)
        self.names.add(name)
        self.entered -= 1
        return True

    def drop(self, name: str) -> None:
        self.names.discard(name)

    def close(self) -> None:
        self.names.clear()


def test_views_are_changed_by_one_thread_at_a_time(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a thread with an older catalog leaves the view of a dropped stage."""
    spark = SimpleNamespace()
    views = SlowViews(spark)
    session.input("numbers", "x int")
    session.input("others", "x int")
    link = services_of(session).spark_connection
    monkeypatch.setattr("nosync_nb.spark.spark_session.find_session", lambda user: spark)
    monkeypatch.setattr("nosync_nb.spark.views.views.Views", lambda *_: views)
    monkeypatch.setattr(link, "_given", spark)
    link.follow()
    first = threading.Thread(target=link.show_views, args=(None,))
    first.start()
    assert views.begun.wait(60)
    second = threading.Thread(target=session.drop, args=["others"])
    second.start()
    second.join(0.2)
    views.go_on.set()
    for thread in (first, second):
        thread.join(60)
    assert views.most == 1
    assert views.names == {"numbers"}
    link.close()
    monkeypatch.undo()


def test_closed_session_creates_no_views(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing would delete them."""
    spark = SimpleNamespace()
    views = SlowViews(spark)
    views.go_on.set()
    session = nosync_nb.open(tmp_path / "log")
    session.input("numbers", "x int")
    session.close()
    link = services_of(session).spark_connection
    monkeypatch.setattr("nosync_nb.spark.spark_session.find_session", lambda user: spark)
    monkeypatch.setattr("nosync_nb.spark.views.views.Views", lambda *_: views)
    monkeypatch.setattr(link, "_given", spark)
    link.follow()
    link.show_views(None)
    assert not views.begun.is_set()
