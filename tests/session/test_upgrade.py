"""Upgrade: files of the release before the modules were moved load, and nothing is lost.

`tests/data/upgrade/before_moves.tar.xz` was written once, by the last commit with the former module
paths: a log that was not closed, with branches, functions and a replica; the rows of each of its
stages at each epoch; and pickles of public names, of values that public calls return, and of
functions that name them. It is never written again.
"""

from __future__ import annotations

import base64
import io
import json
import shutil
import sys
import tarfile
import types
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import golden_logs
import pytest
from internals import services_of

import nosync_nb
from nosync.log import location
from nosync.log.notebook_memo import NotebookMemo, RunningCell
from nosync_nb import Session, windows
from nosync_nb.collections.explain_output import ExplainOutput
from nosync_nb.collections.functions.closure import Cached
from nosync_nb.former_modules import FORMER, register_former_modules
from nosync_nb.session.feeds.folder_watch import WatchStatus
from nosync_nb.session.timetravel.rewind import RewindReport
from nosync_nb.spark.source import NosyncSource
from nosync_nb.store.catalog.epoch_index import EpochSequence
from nosync_nb.store.replication.agent.offloaded_merges import (
    MergeProposal,
    MergeRequest,
    MergeRequests,
)
from nosync_nb.store.replication.agent.progress import (
    ProgressWriter,
    ReplicaProgress,
    parse_progress,
)
from nosync_nb.store.replication.agent.scrub import ScrubReport
from nosync_nb.store.timetravel.branches import BranchInfo
from nosync_nb.store.verification.report import VerificationReport
from nosync_nb.trace.batch import Layout
from nosync_nb.trace.parts.part_file import PartRef

ARCHIVE = golden_logs.GOLDEN.parent / "upgrade" / "before_moves.tar.xz"
BRANCHES = ("what_if", "what_if/inner")

VALUES = {
    "report": nosync_nb.RecoveryReport,
    "error": nosync_nb.StageError,
    "time": nosync_nb.TimeError,
    "frontiers": dict,
    "watch": WatchStatus,
    "row": tuple,
    "branches": dict,
    "verified": VerificationReport,
    "epochs": EpochSequence,
    "rewound": RewindReport,
    "explain": ExplainOutput,
}


class FormerFiles(NamedTuple):
    """The files of the former release, in folders of a test."""

    log: Path
    site: Path
    expected: dict[str, Any]
    pickles: dict[str, bytes]

    @property
    def same_python(self) -> bool:
        """True if functions of users can be loaded here: they are stored as bytecode."""
        here = (f"{sys.version_info.major}.{sys.version_info.minor}", cloudpickle.__version__)
        return here == (self.expected["python"], self.expected["cloudpickle"])

    def replica(self) -> str:
        """The URL of the log's copy."""
        (log_id,) = (path.name for path in self.site.iterdir() if path.name != "branches")
        return f"file://{self.site}#{log_id}"


@pytest.fixture
def former_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FormerFiles:
    """Restores the files of the former release and its key; a checkout keeps no file modes."""
    key = tmp_path / "home" / "key"
    key.parent.mkdir(mode=0o700)
    shutil.copyfile(golden_logs.KEY, key)
    key.chmod(0o600)
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(key))
    folder = tmp_path / "former"
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    pickles = json.loads((folder / "pickles.json").read_text())
    return FormerFiles(
        folder / "log",
        folder / "site",
        json.loads((folder / "expected.json").read_text()),
        {name: base64.b64decode(data) for name, data in pickles.items()},
    )


def current_rows(session: Session) -> dict[str, list[str]]:
    return {n: sorted(map(repr, session[n].rows())) for n in (*session.inputs, *session.stages)}


def rows_by_epoch(session: Session) -> dict[str, dict[str, list[str]]]:
    return {
        name: {
            str(at): sorted(map(repr, session[name].rows(at=at)))
            for epochs in session[name].history()
            for at in epochs
        }
        for name in (*session.inputs, *session.stages)
    }


def check_unchanged(session: Session, expected: dict[str, Any]) -> None:
    """Asserts that the session has every row that was written, and computed none."""
    assert session.now == expected["now"]
    assert not session.stale
    assert current_rows(session) == expected["rows"]
    assert rows_by_epoch(session) == expected["epochs"]
    assert set(session.recovery.stages.values()) == {"read"}
    services_of(session).writer_lock.run_pre_write_tasks()
    assert session.recovery.recomputed == 0
    assert session.stats["executed"] == 0
    assert not session.recovery.lost
    assert not session.recovery.uncertain


def test_former_paths_lead_to_the_current_objects() -> None:
    """Every entry of the table, by import as a pickle does it; other names stay unknown."""
    for module, names in FORMER.items():
        former = sys.modules[f"nosync_nb.{module}"]
        for name, current in names.items():
            assert getattr(former, name).__name__ == current.rpartition(".")[2]
        assert not hasattr(former, "__file__")
        with pytest.raises(AttributeError, match="has no attribute 'undone'"):
            _ = former.undone  # type: ignore[attr-defined]
    from nosync_nb.collections.functions.pickles import (  # type: ignore[import-not-found]
        Cached as FormerCached,
    )

    assert FormerCached is Cached
    package = types.ModuleType("nosync_nb.session.input")
    modules = {package.__name__: package}
    register_former_modules("nosync_nb", modules)
    assert modules[package.__name__] is package, "a module that exists is not replaced"


def test_pickles_that_name_former_modules_load(former_files: FormerFiles) -> None:
    public = {**vars(nosync_nb), "NosyncSource": NosyncSource, "tumbling": windows.tumbling}
    public["windows"] = windows
    values: dict[str, Any] = {}
    for name, data in former_files.pickles.items():
        kind, _, name = name.partition(" ")
        if kind == "public":
            assert cloudpickle.loads(data) is public[name]
        elif kind == "value":
            values[name] = cloudpickle.loads(data)
    assert {name: type(value) for name, value in values.items() if name != "row"} == {
        name: kind for name, kind in VALUES.items() if name != "row"
    }
    row, error, report = values["row"], values["error"], values["report"]
    assert row._fields == ("id", "customer", "amount")
    assert isinstance(row, tuple)
    assert (str(error), error.hint, error.stage, error.row) == ("message", "remedy", "s", (1, 2))
    assert report.resumed_at == 7
    assert "recovered at epoch 7" in str(report)
    assert {type(each) for each in values["frontiers"].values()} == {nosync_nb.Frontier}
    assert {type(each) for each in values["branches"].values()} == {BranchInfo}
    assert values["branches"]["what_if"].at == 4
    assert not values["verified"].damage
    assert [each.number for each in values["epochs"]] == [*range(former_files.expected["now"] + 1)]
    assert "aggregate by customer" in values["explain"]
    assert "aggregate by customer" in values["explain"]._repr_html_()


def test_functions_that_name_former_modules_load_and_run(former_files: FormerFiles) -> None:
    if not former_files.same_python:
        pytest.skip("bytecode of another Python")
    row = cloudpickle.loads(former_files.pickles["value row"])
    names = cloudpickle.loads(former_files.pickles["function names"])
    kinds = "Frontier,Input,copy,watch,Session,Collection,RecoveryReport"
    assert names(row) == (row.id, kinds)
    guarded = cloudpickle.loads(former_files.pickles["function guarded"])
    with pytest.raises(nosync_nb.StageError, match="negative"):
        guarded(row._replace(amount=-1.0))


def test_log_opens_with_nothing_recomputed_and_continues(former_files: FormerFiles) -> None:
    """Its functions name former modules, and compute the next epoch as the former release did."""
    if not former_files.same_python:
        pytest.skip("bytecode of another Python")
    with nosync_nb.open(former_files.log) as session:
        check_unchanged(session, former_files.expected)
        assert sorted(session.branches) == former_files.expected["listed"]
        with session.branch("next", at=former_files.expected["now"] - 1) as branch:
            branch["orders"].upsert([(50, 1, 5.0)])
            branch["edges"].insert([(3, 50)])
            branch["orders"].delete([2])
            branch.commit()
            assert current_rows(branch) == former_files.expected["after"]
        assert not session.verify().damage
    with nosync_nb.open(former_files.log) as session:
        assert current_rows(session) == former_files.expected["rows"]


def test_backup_branch_of_a_rewind_opens_with_nothing_recomputed(former_files: FormerFiles) -> None:
    if not former_files.same_python:
        pytest.skip("bytecode of another Python")
    with nosync_nb.open(golden_logs.branch_of(former_files.log, "before-rewind-1")) as branch:
        assert (branch.now, branch.stale) == (7, {})
        assert set(branch.recovery.stages.values()) == {"read"}
        assert branch.recovery.recomputed == 0
        for name, epochs in former_files.expected["epochs"].items():
            shared = epochs["6"]
            assert sorted(map(repr, branch[name].rows(at=6))) == shared


@pytest.mark.parametrize("name", BRANCHES)
def test_branch_opens_with_nothing_recomputed(former_files: FormerFiles, name: str) -> None:
    if not former_files.same_python:
        pytest.skip("bytecode of another Python")
    with nosync_nb.open(golden_logs.branch_of(former_files.log, name)) as branch:
        check_unchanged(branch, former_files.expected["branches"][name])
        branch["orders"].upsert([(7, 7, 7.0)])
        branch.commit()
        assert "Row(id=7, square=49)" in current_rows(branch)["cached"]


def test_replica_restores_the_log(former_files: FormerFiles, tmp_path: Path) -> None:
    if not former_files.same_python:
        pytest.skip("bytecode of another Python")
    with nosync_nb.open(tmp_path / "restored", replicas=[former_files.replica()]) as session:
        check_unchanged(session, former_files.expected)
        assert any("restored from" in note for note in session.recovery.notes)
        session["orders"].upsert([(7, 7, 7.0)])
        session.commit(wait="replicas")
        (copy,) = session.verify().replicas
        assert (copy.state, copy.epoch) == ("level", former_files.expected["now"] + 1)


def test_former_replica_is_continued_by_its_log(former_files: FormerFiles) -> None:
    """The replicas of a moved log are named again; the copy of the former release is not resent."""
    size = sum(path.stat().st_size for path in former_files.site.rglob("*-*") if path.is_file())
    with nosync_nb.open(former_files.log, replicas=[former_files.replica()]) as session:
        session["orders"].upsert([(7, 7, 7.0)])
        session.commit(wait="replicas")
        (status,) = session.replicas.status()
        assert (status.epoch, status.behind) == (session.now, 0)
        assert 0 < status.bytes_sent < size // 4
        (copy,) = session.verify().replicas
        assert (copy.state, copy.epoch) == ("level", session.now)


def test_keeper_and_owner_of_two_releases_understand_each_other() -> None:
    """A keeper that dies after an upgrade is restarted from the new release by its old owner.

    These are lines that the former release has written.
    """
    progress = (
        b'{"replica": 1, "condition": "level", "seq": 7, "epoch": 3, "why": "", "bytes_sent": 120,'
        b' "offset": 900, "backlog_bytes": 0, "last_bytes": 0, "obeys": 0, "incarnation": "ab",'
        b' "void": false}\n'
    )
    state = ReplicaProgress(1, "level", 7, 3, bytes_sent=120, offset=900, incarnation="ab")
    scrubbed = b'{"rounds": 1, "files": 2, "bytes": 3, "repaired": 0, "event": ""}\n'
    merged = (
        b'{"merge": 7, "done": true, "files": [["log1-2-g1.arrow", 5, 0, 18446744073709551616,'
        b' 900, "abababababababababababababababab"]], "why": ""}\n'
    )
    part = PartRef("log1-2-g1.arrow", 5, 0, 2**64, 900, "abababababababababababababababab")
    former_files = {
        progress: state,
        scrubbed: ScrubReport(1, 2, 3),
        merged: MergeProposal(7, True, (part,)),
    }
    for line, message in former_files.items():
        assert parse_progress(line) == message
        sink = io.BytesIO()
        ProgressWriter(sink)(message)
        assert json.loads(sink.getvalue()) == json.loads(line)
    requested = (
        b'\n[7, "trace1-1-3-g1", [["int", "string"], [0], null], [[["log1-2-g1.arrow", 5, 0,'
        b' 18446744073709551616, 900, "abababababababababababababababab"]]]]\n'
    )
    layout = Layout(("int", "string"), (0,))
    request = MergeRequest(7, "trace1-1-3-g1", layout, ((part,),))
    assert MergeRequests().complete_requests(b".." + requested + b".") == [request]
    assert request.line == requested


def test_memo_of_a_notebook_is_read(tmp_path: Path) -> None:
    """Reads `notebook.json` of the former release; its signature is not tested."""
    (tmp_path / location.MEMO).write_text(
        '{"attempts": 1, "names": {"limit": "In [3]"}, "aliases": {"o": "orders"}, "imports": {},'
        ' "told": {"limit": 2}, "running": ["In [4]", 5, true], "spark": true, "conf": {},'
        ' "signed": ""}'
    )
    assert NotebookMemo.read(tmp_path) == NotebookMemo(
        1,
        {"limit": "In [3]"},
        {"o": "orders"},
        {},
        {"limit": 2},
        RunningCell("In [4]", 5, True),
        True,
        {},
    )
