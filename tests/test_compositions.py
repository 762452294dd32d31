"""Random programs, loops included: at every epoch equal to evaluation from scratch.

Between epochs the log may be closed and opened, or a copy of it be taken over as after a kill, so
that the epoch after a recovery is compared too.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator

import model
import programs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from model import Bag, bag
from strategies import Epoch, histories

import nosync_nb
from nosync_nb import Collection, Session
from nosync_nb.files import File, Files


@pytest.fixture(autouse=True, scope="module")
def _no_disk() -> Iterator[None]:
    """Does without waiting for the disk, which is not the matter here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(File, "sync", lambda file: None)
        patch.setattr(Files, "sync_folder", lambda files, path: None)
        yield


def held(collection: Collection, at: int | None = None) -> Bag:
    return bag(map(model.typed, collection.rows(at=at)))


def expected(wanted: Bag) -> Bag:
    return bag(map(model.typed, model.rows(wanted)))


def again(session: Session, folder: str, how: str, number: int) -> Session:
    """The session after a clean end, or after a kill: a copy of the folder is its image."""
    if how == "close":
        path = session.path
        session.close()
        return nosync_nb.open(path)
    copy = f"{folder}/copy-{number}"
    shutil.copytree(session.path, copy)
    session.close()
    return nosync_nb.open(copy, takeover=True)


@pytest.mark.filterwarnings("ignore:.*before the restart")
@given(st.data(), programs.programs(["a", "b"]))
def test_programs_equal_evaluation_from_scratch(
    data: st.DataObject, program: programs.Program
) -> None:
    kinds = {"a": ("int", "int"), "b": ("int", "int")}
    pools = dict.fromkeys(kinds, programs.ROWS)
    history = data.draw(histories(kinds, pools=pools), label="history")
    defined_at = data.draw(st.integers(0, len(history)), label="defined at")
    with tempfile.TemporaryDirectory() as folder:
        open_ = [nosync_nb.open(f"{folder}/log")]
        try:
            follow(data, folder, open_, program, history, defined_at)
        finally:
            open_[-1].close()


def follow(
    data: st.DataObject,
    folder: str,
    open_: list[Session],
    program: programs.Program,
    history: list[Epoch],
    defined_at: int,
) -> None:
    """Runs a history and compares; `open_` ends with the session that is open."""
    names = ("a", "b")
    for name in names:
        open_[-1].input(name, programs.COLUMNS)
    wanted: dict[int, Bag] = {}
    for number in range(len(history) + 1):
        session = open_[-1]
        after = history[number - 1].after if number else {name: bag() for name in names}
        if number:
            for name, calls in history[number - 1].calls.items():
                for change in calls:
                    method = "insert" if change.insert else "remove"
                    getattr(session[name], method)(change.rows)
            session.commit()
        wanted[number] = programs.run(program, after)
        if number == defined_at:
            session.stage("result", programs.build(program, session.inputs))
        if number >= defined_at:
            assert held(session["result"]) == expected(wanted[number])
        how = data.draw(st.sampled_from(["", "", "close", "kill"]), label="then")
        if how:
            open_.append(again(session, folder, how, number))
            assert open_[-1].recovery.recomputed == 0
    for number in range(defined_at, len(history) + 1):
        assert held(open_[-1]["result"], number) == expected(wanted[number])
