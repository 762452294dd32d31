"""A small session, and its contents as data."""

from __future__ import annotations

from typing import Any

from internals import log_of

from nosync_nb import Session


def people(session: Session) -> None:
    """Inputs with and without key, stages over them, two epochs."""
    everybody = session.input("people", "name string, age int, score double")
    planes = session.input("planes", "tail string, seats int", key="tail")
    session.stage("grown", everybody.filter("age >= 18"))
    session.stage("by_age", session["grown"].group_by("age").agg(n="count(*)"))
    everybody.insert([("ann", 20, 1.0), ("bob", 10, 2.0)])
    planes.insert([("a", 1)])
    session.commit()
    everybody.insert([("cy", 20, 3.0)])
    session.commit(label="second")


def state(session: Session) -> dict[str, Any]:
    """The contents that must not change."""
    return {
        **everything(session),
        "now": session.now,
        "frames": log_of(session).head.seq,
    }


def everything(session: Session) -> dict[str, Any]:
    """The rows of everything at every epoch."""
    return {
        name: [session[name].rows(at=at) for at in session[name].history()[0]]
        for name in session.info.reads
    }
