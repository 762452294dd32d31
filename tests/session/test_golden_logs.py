"""Golden logs: logs of earlier releases in `tests/data/v1` open with nothing recomputed.

Functions load under the Python and cloudpickle that stored them. Under other versions, the stages
with functions are stale, and the tests expect that.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import golden_logs
import pytest
from internals import catalog_of, services_of

import nosync_nb
from nosync.__main__ import main
from nosync_nb import Session
from nosync_nb.collections.functions import signing
from nosync_nb.files.filesystem import Files
from nosync_nb.store.log import owner

EXPECTED = json.loads(golden_logs.EXPECTED.read_text())
WROTE = (EXPECTED["python"], EXPECTED["cloudpickle"])
SAME = (f"{sys.version_info.major}.{sys.version_info.minor}", cloudpickle.__version__) == WROTE
CALLING = {
    "orders": ["pairs", "scaled", "letters", "spread", "wide", "drawn", "edited", "follows"],
    "graph": ["far", "hourly"],
    "forks": [],
}
"""The stages with a function, of the user or of `windows`, and their readers."""

IN_MEMORY = {"brief"}
"""The memory stages of branches: they are recomputed by a writer."""

READABLE = {"orders": 1171, "graph": 432, "forks": 134}
"""The numbers of readable epochs of all stages."""

PLANNED_DIFFERENTLY = {"orders": 1, "graph": 2, "forks": 0}
"""The numbers of unnamed operators that the release that wrote a log did not plan."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without a key."""
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "home" / "key"))
    return tmp_path / "home"


def test_owner_files_name_no_machine() -> None:
    owners = [path.parent for path in golden_logs.GOLDEN.rglob("owner")]
    assert len(owners) == len(golden_logs.LABELS) + len(golden_logs.BRANCHES)
    for folder in owners:
        info = owner.read_owner(Files(), str(folder))
        assert info is not None
        lies = golden_logs.PLACE / folder.relative_to(golden_logs.GOLDEN)
        assert info.place == owner.LogLocation(str(lies), 1, 1)


@pytest.fixture(params=golden_logs.LABELS)
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a log, for a user who has imported the key that signed it."""
    assert main(["key", "import", str(golden_logs.carried(tmp_path))]) == 0
    assert signing.key_id(signing.user_key()) == EXPECTED["key"]
    return golden_logs.copied(request.param, tmp_path)


@pytest.fixture
def other_cloudpickle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version of cloudpickle, as under another minor version of Python."""
    monkeypatch.setattr(cloudpickle, "__version__", "0.0")


def compare_all_reads(
    session: Session, expected: dict[str, Any], labels: dict[str, int] | None = None
) -> Iterator[tuple[str, int]]:
    """Compares all readable rows; yields each name and epoch."""
    labels = golden_logs.LABELS[Path(session.path).name] if labels is None else labels
    assert session.now == expected["now"]
    assert expected["reads"] == {name: sorted(below) for name, below in session.info.reads.items()}
    for label, at in labels.items():
        for name in session.inputs.keys() - {"draws"}:
            assert session[name].rows(at=label) == session[name].rows(at=at)
    for name, changes in expected["rows"].items():
        ranges: list[range] = []
        now: Counter[str] = Counter()
        by_epoch = {at: (removed, inserted) for at, removed, inserted in changes}
        for epochs in session[name].history():
            ranges.append(epochs)
            for at in epochs:
                removed, inserted = by_epoch.get(at, ((), ()))
                now = (
                    Counter(inserted)
                    if removed is None
                    else now - Counter(removed) + Counter(inserted)
                )
                assert now == Counter(golden_logs.texts(session[name].rows(at=at))), (name, at)
                yield name, at
        assert [at for at, removed, _ in changes if removed is None] == [r[0] for r in ranges], name
        assert changes[-1][0] == ranges[-1][-1], name


@pytest.mark.fault(7)
def test_every_stage_is_read_at_every_epoch_without_recomputation(log: Path) -> None:
    expected = EXPECTED[log.name]
    with nosync_nb.open(log, mode="r") as reader:
        read = list(compare_all_reads(reader, expected))
    assert len(read) == READABLE[log.name]
    with nosync_nb.open(log) as session:
        assert session.recovery.clean == (log.name == "graph")
        assert not session.recovery.lost
        assert not session.recovery.notes
        again = {n: w for n, w in session.recovery.stages.items() if w != "read"}
        assert again == ({} if SAME else dict.fromkeys(CALLING[log.name], "stale"))
        assert list(compare_all_reads(session, expected)) == read
        services_of(session).writer_lock.run_pre_write_tasks()
        assert session.recovery.recomputed == 0
        # Unnamed nodes that this release plans differently are computed once before a write.
        executed = session.stats["executed"]
        assert executed == PLANNED_DIFFERENTLY[log.name] or not SAME
    with nosync_nb.open(log) as session:
        services_of(session).writer_lock.run_pre_write_tasks()
        assert session.stats["executed"] == 0


@pytest.mark.fault(45)
@pytest.mark.parametrize("how", ["here", "other_cloudpickle"])
def test_epochs_after_an_opening_are_right_in_every_stage(
    log: Path, how: str, request: pytest.FixtureRequest
) -> None:
    """The expected rows come from the process that wrote the log, checked from scratch."""
    if how == "other_cloudpickle":
        request.getfixturevalue("other_cloudpickle")
    stale = set(CALLING[log.name]) if how == "other_cloudpickle" or not SAME else set()
    expected = EXPECTED[log.name]
    with nosync_nb.open(log) as session:
        assert session.stale.keys() == stale
        assert all(
            "function was not restored" in why or "reads" in why for why in session.stale.values()
        )
        before = {name: session[name].rows(at=expected["now"]) for name in stale}
        golden_logs.go_on(session, log.name)
        assert session.now == expected["now"] + 2
        after = {n: rows for n, rows in expected["after"].items() if n not in stale}
        assert golden_logs.newest(session) == after
        for name in stale:
            assert session[name].history()[-1][-1] == expected["now"]
            assert session[name].rows(at=expected["now"]) == before[name]
    with nosync_nb.open(log) as session:
        assert session.recovery.recomputed == 0
        assert session.stale.keys() == stale
        assert golden_logs.newest(session) == after


@pytest.mark.fault(45)
@pytest.mark.parametrize("name", golden_logs.BRANCHES)
@pytest.mark.parametrize("log", ["forks"], indirect=True)
def test_branches_are_listed_read_at_every_epoch_and_continue(log: Path, name: str) -> None:
    expected = EXPECTED["forks"]["branches"][name]
    with nosync_nb.open(log) as main:
        assert [*main.branches] == sorted({each.partition("/")[0] for each in golden_logs.BRANCHES})
        assert [*main.pins.items()] == [("first", 1), ("kept", 4)]
        assert main.retain == 8
    path = golden_logs.branch_of(log, name)
    written = {n: changes for n, changes in expected["rows"].items() if n not in IN_MEMORY}
    with nosync_nb.open(path, mode="r") as reader:
        read = list(compare_all_reads(reader, {**expected, "rows": written}, {"begun": 1}))
        assert len({at for _, at in read}) == expected["now"] + 1
    with nosync_nb.open(path) as branch:
        assert not branch.stale
        assert {*read} <= {*compare_all_reads(branch, expected, {"begun": 1})}
        golden_logs.go_on(branch, "forks")
        assert golden_logs.newest(branch) == expected["after"]
    with nosync_nb.open(path) as branch:
        assert branch.now == expected["now"] + 2
        assert golden_logs.newest(branch) == expected["after"]


@pytest.mark.fault(45)
@pytest.mark.parametrize("log", ["forks"], indirect=True)
def test_rewind_branch_and_drop_branch_work_in_a_golden_log(log: Path) -> None:
    with nosync_nb.open(log) as session:
        before = {name: session[name].rows(at=14) for name in session.stages}
        rewound = session.rewind(to=14)
        assert (rewound.left, rewound.branch) == (16, "before-rewind-3")
        with session.branch("now") as branch:
            assert {name: branch[name].rows() for name in before} == before
        for name in ("now", "before-rewind-3", "before-rewind-1"):
            session.drop_branch(name)
        with pytest.raises(nosync_nb.SchemaError, match="has branches of its own: inner"):
            session.drop_branch("what_if")
        assert [*session.branches] == ["before-rewind-2", "what_if"]


def test_another_user_reads_rows_and_gets_no_functions(
    log: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(home / "another"))
    assert signing.key_id(signing.user_key()) != EXPECTED["key"]
    monkeypatch.setattr(
        signing.closure, "deserialize_function", lambda data: pytest.fail("a function is loaded")
    )
    expected = EXPECTED[log.name]
    stages = {name for name in expected["reads"] if expected["reads"][name] and "@" not in name}
    with nosync_nb.open(log, mode="r") as reader:
        assert list(compare_all_reads(reader, expected))
        report = reader.info.trust()
    assert EXPECTED["key"] in report.whose
    assert "not trusted" in report.whose
    assert {each.whose for each in report.stages} == {f"of key {EXPECTED['key']}"}
    with nosync_nb.open(log) as session:
        assert session.stale.keys() == stages
        assert list(compare_all_reads(session, expected))
        assert session.recovery.recomputed == 0


def test_golden_logs_are_small_and_name_no_machine(log: Path) -> None:
    files = [path for path in golden_logs.GOLDEN.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 2_000_000
    assert stat.S_IMODE(os.stat(os.environ["NOSYNC_KEY_FILE"]).st_mode) == 0o600
    names = [path.name for path in log.rglob("*")]
    for kind in ("checkpoint-", "segment-", "pack-", *(() if log.name == "forks" else ("trace",))):
        assert any(name.startswith(kind) for name in names), kind
    if not SAME:
        return
    with nosync_nb.open(log) as session:
        definitions = [s.definition for s in catalog_of(session).values() if s.definition]
        captured = [c.function for d in definitions for c in d.captures]
        places = {f.__code__.co_filename for f in captured if hasattr(f, "__code__")}
        assert bool(captured) == bool(CALLING[log.name])
    assert not any(os.path.isabs(place) for place in places), places
