"""Fenced sessions: one that is not the owner changes nothing of the log.

Every public method is called on a session whose log another owner has taken over, on a forked
child, on a closed session, and on a reading one. Tables define what each call must do there. A
public method without an entry fails the test.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from internals import log_of, services_of, settle_background, traces_of

import nosync_nb
from nosync_nb import Collection, DurabilityError, FencedError, Input, NosyncError, Session
from nosync_nb.session.feeds.folder_watch import FolderWatch
from nosync_nb.session.feeds.stream import StreamFeed
from nosync_nb.session.maintenance import maintenance
from nosync_nb.session.writes import ingest
from nosync_nb.session.writes.commit import EpochBlock
from nosync_nb.store import store
from nosync_nb.store.timetravel import branches
from nosync_nb.store.timetravel.branches import FOLDER, MAKING

pytestmark = [
    pytest.mark.usefixtures("own_key", "no_disk"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]


class Subject(NamedTuple):
    """A session in some state, and the objects that were created with it before."""

    session: Session
    data: Input
    keyed: Input
    sums: Collection
    block: EpochBlock
    watch: FolderWatch
    folder: Path


Call = Callable[[Subject], Any]
WRITES, LOADS, READS, LOCAL = "writes", "loads", "reads", "local"
"""Kinds of calls: changes the log or pending rows; does so through a watch, which may be stopped;
reads the log; touches neither."""


def enter_epoch(subject: Subject) -> None:
    with subject.session.epoch():
        pass


def assign(name: str, value: Any) -> Call:
    return lambda subject: setattr(subject.session, name, value)


def start_stream(subject: Subject) -> None:
    """Starts a stream, which is refused before it reaches Spark."""
    subject.session.stream(None, into=subject.data)


SESSION: dict[str, tuple[str, Call]] = {
    "backlog_bytes": (LOCAL, assign("backlog_bytes", 1 << 20)),
    "begin": (WRITES, lambda s: s.session.begin().commit()),
    "branch": (WRITES, lambda s: s.session.branch("another")),
    "branches": (LOCAL, lambda s: s.session.branches),
    "budget": (WRITES, assign("budget", "1 GB")),
    "close": (LOCAL, lambda s: s.session.close()),
    "closed": (LOCAL, lambda s: s.session.closed),
    "collect_rows": (LOCAL, assign("collect_rows", 1000)),
    "commit": (WRITES, lambda s: s.session.commit()),
    "compare": (READS, lambda s: s.session.compare("sums", at=(1, 2)).rows()),
    "cursor": (READS, lambda s: s.session.cursor("sums").page((), 0, 5)),
    "declared_from_data": (LOCAL, lambda s: s.session.declared_from_data()),
    "define": (WRITES, lambda s: s.session.define({"more": s.data.filter("k > 1")})),
    "discard": (LOCAL, lambda s: s.session.discard()),
    "drop": (WRITES, lambda s: s.session.drop("sums")),
    "drop_branch": (WRITES, lambda s: s.session.drop_branch("kept")),
    "epoch": (WRITES, enter_epoch),
    "epochs": (LOCAL, lambda s: s.session.epochs()),
    "execute": (WRITES, lambda s: s.session.execute("INSERT INTO data VALUES (9, 9)")),
    "explain": (LOCAL, lambda s: s.session.explain("sums")),
    "follow": (WRITES, lambda s: s.session.follow(s.session)),
    "fork": (WRITES, lambda s: s.session.fork("another")),
    "frontiers": (LOCAL, lambda s: s.session.frontiers),
    "info": (LOCAL, lambda s: s.session.info),
    "input": (WRITES, lambda s: s.session.input("other", "k int")),
    "inputs": (LOCAL, lambda s: s.session.inputs),
    "iterate": (LOCAL, lambda s: s.session.iterate(lambda x: x, x=s.data)),
    "mode": (LOCAL, lambda s: s.session.mode),
    "now": (LOCAL, lambda s: s.session.now),
    "on_notice": (LOCAL, lambda s: s.session.on_notice(None)),
    "owns": (LOCAL, lambda s: s.session.owns(s.sums)),
    "path": (LOCAL, lambda s: s.session.path),
    "pending": (LOCAL, lambda s: s.session.pending),
    "pin": (WRITES, lambda s: s.session.pin(1, "pinned")),
    "pins": (LOCAL, lambda s: s.session.pins),
    "recovery": (LOCAL, lambda s: str(s.session.recovery)),
    "recovery_frontier": (LOCAL, lambda s: s.session.recovery_frontier()),
    "refresh": (READS, lambda s: s.session.refresh()),
    "rename": (WRITES, lambda s: s.session.rename("sums", "totals")),
    "replay": (WRITES, lambda s: s.session.replay("sums")),
    "replay_rows": (LOCAL, assign("replay_rows", 1000)),
    "replicas": (LOCAL, lambda s: s.session.replicas),
    "resolve": (LOCAL, lambda s: s.session.resolve(1)),
    "retain": (WRITES, assign("retain", 1)),
    "rewind": (WRITES, lambda s: s.session.rewind(to=1)),
    "spark": (LOCAL, lambda s: s.session.spark),
    "spark_conf": (LOCAL, lambda s: s.session.spark_conf),
    "spark_control": (LOCAL, lambda s: s.session.spark_control),
    "spark_off": (LOCAL, assign("spark_off", True)),
    "spark_rows": (LOCAL, assign("spark_rows", None)),
    "sql": (LOCAL, lambda s: s.session.sql("SELECT k FROM sums")),
    "stage": (WRITES, lambda s: s.session.stage("more", s.data.filter("k > 1"))),
    "stages": (LOCAL, lambda s: s.session.stages),
    "stale": (LOCAL, lambda s: s.session.stale),
    "stats": (LOCAL, lambda s: s.session.stats),
    "stream": (WRITES, start_stream),
    "subscribe": (LOCAL, lambda s: s.session.subscribe(print)()),
    "sync": (WRITES, lambda s: s.session.sync()),
    "unpin": (WRITES, lambda s: s.session.unpin("first")),
    "verify": (READS, lambda s: s.session.verify()),
}

INPUT: dict[str, tuple[str, Call]] = {
    "clear": (WRITES, lambda s: s.data.clear()),
    "delete": (WRITES, lambda s: s.keyed.delete([1])),
    "insert": (WRITES, lambda s: s.data.insert([(7, 7)])),
    "key": (LOCAL, lambda s: s.keyed.key),
    "remove": (WRITES, lambda s: s.data.remove([(1, 1)])),
    "set": (WRITES, lambda s: s.data.set([(8, 8)])),
    "upsert": (WRITES, lambda s: s.keyed.upsert([(1, 9)])),
}

COLLECTION: dict[str, tuple[str, Call]] = {
    "agg": (LOCAL, lambda s: s.data.agg(n="count(*)")),
    "at": (READS, lambda s: s.data.at(1).rows()),
    "changes": (READS, lambda s: s.sums.changes(after=1)),
    "concat": (LOCAL, lambda s: s.data.concat(s.data)),
    "consolidate": (LOCAL, lambda s: s.data.consolidate()),
    "count": (READS, lambda s: s.sums.count()),
    "distinct": (LOCAL, lambda s: s.data.distinct()),
    "drop": (LOCAL, lambda s: s.data.drop("v")),
    "except_all": (LOCAL, lambda s: s.data.except_all(s.data)),
    "explain": (LOCAL, lambda s: str(s.sums.explain())),
    "filter": (LOCAL, lambda s: s.data.filter("k > 1")),
    "flat_map": (LOCAL, lambda s: s.data.flat_map(lambda row: [row], schema="k int, v int")),
    "groupBy": (LOCAL, lambda s: s.data.groupBy("k")),
    "group_by": (LOCAL, lambda s: s.data.group_by("k")),
    "head": (READS, lambda s: s.sums.head(1)),
    "history": (LOCAL, lambda s: s.sums.history()),
    "position": (LOCAL, lambda s: s.sums.position.epoch),
    "inspect": (LOCAL, lambda s: s.sums.inspect(lambda *_: None)),
    "iterate": (LOCAL, lambda s: s.data.iterate(lambda x: x)),
    "join": (LOCAL, lambda s: s.data.join(s.sums, on="k")),
    "map": (LOCAL, lambda s: s.data.map(lambda row: row, schema="k int, v int")),
    "multiplicity": (LOCAL, lambda s: s.sums.multiplicity()),
    "name": (LOCAL, lambda s: s.sums.name),
    "negate": (LOCAL, lambda s: s.data.negate()),
    "rename": (LOCAL, lambda s: s.data.rename(v="w")),
    "rows": (READS, lambda s: s.sums.rows()),
    "schema": (LOCAL, lambda s: s.sums.schema),
    "select": (LOCAL, lambda s: s.data.select("k")),
    "stale": (LOCAL, lambda s: s.sums.stale),
    "subtract": (LOCAL, lambda s: s.data.subtract(s.data)),
    "threshold": (LOCAL, lambda s: s.data.threshold(bool)),
    "to_arrow": (READS, lambda s: s.sums.to_arrow()),
    "to_pandas": (READS, lambda s: s.sums.to_pandas()),
    "union": (LOCAL, lambda s: s.data.union(s.data)),
    "union_all": (LOCAL, lambda s: s.data.union_all(s.data)),
    "where": (LOCAL, lambda s: s.data.where("k > 1")),
    "window": (LOCAL, lambda s: s.data.window(order_by="k").with_columns(n="row_number()")),
    "with_columns": (LOCAL, lambda s: s.data.with_columns(w="v + 1")),
}

BLOCK: dict[str, tuple[str, Call]] = {
    "note": (LOCAL, lambda s: s.block.note("mark", "text", "")),
    "number": (LOCAL, lambda s: s.block.number),
    "skip": (LOCAL, lambda s: s.block.skip()),
}

WATCH: dict[str, tuple[str, Call]] = {
    "start_watching": (LOCAL, lambda s: s.watch.report_failures()),
    "catch_up": (LOADS, lambda s: s.watch.catch_up(timeout=0)),
    "loaded": (LOCAL, lambda s: s.watch.loaded),
    "look": (LOCAL, lambda s: s.watch.look()),
    "refused": (LOCAL, lambda s: s.watch.refused),
    "running": (LOCAL, lambda s: s.watch.running),
    "status": (LOCAL, lambda s: s.watch.status),
    "stop": (LOCAL, lambda s: s.watch.stop()),
    "report_failures": (LOCAL, lambda s: s.watch.report_failures()),
}

FUNCTIONS: dict[str, tuple[str, Call]] = {
    "watch": (WRITES, lambda s: nosync_nb.watch(s.folder / "more" / "*.csv", into=s.data)),
    "replicas": (WRITES, lambda s: change_replicas(s.session)),
}
"""Functions of the package on an open session. `open` and `copy` take a path and no session."""

NOT_TESTED = {
    Collection: {"to_spark", "hvplot"},  # need a JVM, and a library that loads for seconds
    StreamFeed: {
        "catch_up",
        "is_lost",
        "report_failures",
        "restart_error",
        "running",
        "start_query",
        "stop",
    },
}


def change_replicas(session: Session) -> None:
    """Changes the replicas, as `%dd replicas` does."""
    from nosync_nb.store.replication.config import checked_config

    urls = [Path(session.path).with_name("copy").as_uri()]
    services_of(session).replication.change(checked_config(urls, None, log=session.path))


TABLES: dict[type, dict[str, tuple[str, Call]]] = {
    Session: SESSION,
    Input: INPUT,
    Collection: COLLECTION,
    EpochBlock: BLOCK,
    FolderWatch: WATCH,
}
CALLS = {
    f"{kind.__name__}.{name}": each
    for kind, table in TABLES.items()
    for name, each in table.items()
    if name != "close"
} | {f"nosync_nb.{name}": each for name, each in FUNCTIONS.items()}


@pytest.mark.parametrize("kind", [*TABLES, StreamFeed], ids=lambda kind: kind.__name__)
def test_tables_cover_every_public_method(kind: type) -> None:
    public = {name for name in dir(kind) if not name.startswith("_")}
    if kind is Session:
        public.add("recovery")
    if kind is Input:
        public -= {*dir(Collection)}
    assert public - NOT_TESTED.get(kind, set()) == set(TABLES.get(kind, {}))


# -- the states ------------------------------------------------------------------------------------


@pytest.fixture
def subject(tmp_path: Path) -> Iterator[Subject]:
    """A session with an input, a stage, a branch, a watched folder and a few epochs."""
    session = nosync_nb.open(tmp_path / "log")
    subject = prepare_subject(session, tmp_path)
    yield subject
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session.close()


def prepare_subject(session: Session, folder: Path) -> Subject:
    data = session.input("data", "k int, v int")
    keyed = session.input("keyed", "k int, v int", key="k")
    sums = session.stage("sums", data.group_by("k").agg(n="sum(v)"))
    for epoch in range(3):
        data.insert([(1, epoch), (2, epoch)])
        keyed.upsert([(1, epoch)])
        session.commit()
    session.pin(1, "first")
    session.branch("kept").close()
    (folder / "files").mkdir()
    watch = nosync_nb.watch(folder / "files" / "*.csv", into=data, every=3600)
    with session.epoch() as block:
        data.insert([(3, 3)])
    return Subject(session, data, keyed, sums, block, watch, folder)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spills batches of ten rows to files, pending ones as well."""
    monkeypatch.setattr(ingest, "LOAD_BYTES", 1)
    monkeypatch.setattr(ingest, "SMALL_ROWS", 1)
    for place in (store, maintenance):
        monkeypatch.setattr(place, "SPILL_ROWS", 10)


def load(subject: Subject) -> None:
    """Inserts rows that are pending in a file."""
    layers = Path(subject.session.path) / "layers"
    before = len(list(layers.iterdir()))
    subject.data.insert([(k, 0) for k in range(100, 200)])
    assert len(list(layers.iterdir())) > before


def finish_background(session: Session) -> None:
    """Waits for the background work of a session."""
    settle_background(session)
    session.sync()


def file_hashes(folder: Path) -> dict[str, str]:
    """The hash of every file of a log and its branches, except control block and lock."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.name not in ("generation", "lock"):
            data = path.read_bytes() if path.is_file() else b""
            found[str(path.relative_to(folder))] = hashlib.sha256(data).hexdigest()
    return found


def error_of(subject: Subject, call: Call) -> BaseException | None:
    """Returns the error of a call, or None."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call(subject)
    except Exception as error:
        return error
    return None


def violations(subject: Subject, refusal: type[NosyncError], *, reads: bool = True) -> list[str]:
    """Lists the calls that violate their table.

    Args:
        refusal: the error of calls that change something.
        reads: True if reading calls must succeed; otherwise they may raise an error of NoSync.
    """
    log = Path(subject.session.path)
    before, found = file_hashes(log), []
    (subject.folder / "files" / "late.csv").write_text("k,v\n5,5\n")
    for name, (kind, call) in CALLS.items():
        error = error_of(subject, call)
        hint = getattr(error, "hint", None)
        if kind == WRITES and (type(error) is not refusal or not hint):
            found.append(f"{name} raised {error!r} with the hint {hint!r}")
        if kind == LOADS and (not isinstance(error, NosyncError) or not hint):
            found.append(f"{name} raised {error!r} with the hint {hint!r}")
        if kind == LOCAL and error is not None:
            found.append(f"{name} raised {''.join(traceback.format_exception(error))}")
        if kind == READS and error is not None and (reads or not isinstance(error, NosyncError)):
            found.append(f"{name} raised {error!r}")
        if (after := file_hashes(log)) != before:
            changed = dict(set(after.items()) ^ set(before.items()))
            found.append(f"{name} changed {sorted(changed)}")
            before = after
    return found


@pytest.mark.usefixtures("loads")
def test_fenced_session_changes_nothing(subject: Subject, tmp_path: Path) -> None:
    load(subject)
    with nosync_nb.open(tmp_path / "log", takeover=True) as owner:
        owner["data"].insert([(5, 5)])
        owner.commit()
        branch = owner.branch("kept_too")
        branch["data"].insert([(6, 6)])
        branch.commit()
        branch.close()
        finish_background(owner)
        # the owner may have deleted a file that the fenced session reads
        assert violations(subject, FencedError, reads=False) == []
        assert {*owner.branches} == {"kept", "kept_too"}
        owner["data"].insert([(7, 7)])
        assert owner.commit() == 6
        subject.session.close()


def test_reading_session_changes_nothing(subject: Subject, tmp_path: Path) -> None:
    finish_background(subject.session)
    with nosync_nb.open(tmp_path / "log", mode="r") as reader:
        data, keyed = reader.inputs["data"], reader.inputs["keyed"]
        subject = subject._replace(session=reader, data=data, keyed=keyed, sums=reader["sums"])
        subject.watch.stop()
        assert violations(subject, FencedError) == []
        reader.close()


def test_closed_session_changes_nothing(subject: Subject) -> None:
    subject.session.close()
    assert violations(subject, DurabilityError, reads=False) == []
    subject.session.close()


@pytest.mark.fault(26)
@pytest.mark.usefixtures("loads")
def test_forked_child_changes_nothing(subject: Subject) -> None:
    load(subject)
    finish_background(subject.session)
    assert in_child(lambda: violations(subject, FencedError)) == []
    assert subject.session.commit() == 5
    assert subject.data.count() == 7 + 100


@pytest.mark.usefixtures("loads")
def test_background_work_of_a_fenced_session_changes_nothing(
    subject: Subject, tmp_path: Path
) -> None:
    for epoch in range(3):
        subject.data.insert([(k, epoch) for k in range(20)])
        subject.session.commit()
    settle_background(subject.session)
    with nosync_nb.open(tmp_path / "log", takeover=True) as owner:
        finish_background(owner)
        before = file_hashes(tmp_path / "log")
        owners, service = services_of(subject.session), services_of(subject.session).maintenance
        tasks: list[Callable[[], Any]] = [
            service.checkpoint,
            service.take_proposals,
            lambda: [service.merge(number) for number in traces_of(subject.session)],
            owners.background_rebuild.submit_rebuild,
            owners.backlog_policy.submit_if_due,
        ]
        for number, task in enumerate(tasks):
            owners.worker.submit(number, task)
        owners.worker.drain()
        assert owners.worker.failures.failed_tasks() == ()
        assert file_hashes(tmp_path / "log") == before


def test_forked_child_releases_nothing_of_its_parent(subject: Subject) -> None:
    finish_background(subject.session)
    before = file_hashes(Path(subject.session.path))

    def close() -> list[str]:
        subject.session.close()
        return [] if subject.session.closed else ["it is not closed"]

    assert in_child(close) == []
    assert file_hashes(Path(subject.session.path)) == before
    subject.data.insert([(4, 4)])
    assert subject.session.commit(wait="disk") == 5


def test_forked_child_waits_for_no_lock_of_its_parent(subject: Subject) -> None:
    finish_background(subject.session)
    locked, go = threading.Event(), threading.Event()

    def hold() -> None:
        with services_of(subject.session).writer_lock.lock:
            locked.set()
            go.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    locked.wait(60)

    def changes() -> list[str]:
        errors = [error_of(subject, SESSION[name][1]) for name in ("commit", "branch", "rewind")]
        subject.session.close()
        return [repr(error) for error in errors if not isinstance(error, FencedError)]

    try:
        assert in_child(changes) == []
    finally:
        go.set()
        thread.join()


def in_child(act: Callable[[], list[str]]) -> list[str]:
    """Returns the result of a function in a forked child, which has a minute."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        result = ["it did not end"]
        with suppress(BaseException):
            result = act()
        os.write(writing, json.dumps(result)[:60000].encode())
        os._exit(0)
    os.close(writing)
    killer = threading.Timer(60, os.kill, (child, 9))
    killer.start()
    try:
        with open(reading) as pipe:
            text = pipe.read()
    finally:
        killer.cancel()
        os.waitpid(child, 0)
    found: list[str] = json.loads(text) if text else ["it hung"]
    return found


# -- an owner that is fenced during a call ---------------------------------------------------------


@pytest.mark.fault(24)
@pytest.mark.parametrize("name", ["branch", "drop_branch"])
def test_owner_fenced_while_changing_branches_does_nothing(
    name: str, subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner passed the first check, and is fenced before its first effect."""
    owners: list[Session] = []
    real = branches.sweep_leftovers

    def take_over(parent: Any) -> None:
        monkeypatch.setattr(branches, "sweep_leftovers", real)
        owner = nosync_nb.open(tmp_path / "log", takeover=True)
        owners.append(owner)
        branch = owner.branch("kept_too")
        branch.close()
        half = tmp_path / "log" / FOLDER / f"{MAKING}{owner_generation(owner)}"
        half.mkdir()  # as if the new owner were creating a branch
        finish_background(owner)
        taken_contents.update(file_hashes(tmp_path / "log"))
        real(parent)

    taken_contents: dict[str, str] = {}
    monkeypatch.setattr(branches, "sweep_leftovers", take_over)
    with pytest.raises(FencedError):
        SESSION[name][1](subject)
    assert file_hashes(tmp_path / "log") == taken_contents
    owners[0].close()


def owner_generation(session: Session) -> int:
    return log_of(session).generation
