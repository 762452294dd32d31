"""Golden logs: logs of earlier releases in `tests/data/v1` open with nothing recomputed.

Functions come back under the Python and cloudpickle that stored them; under others the stages that
need one wait for their cells, and that is what is held then.
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
import golden_logs as golden
import pytest
from internals import catalog_of, services_of

import nosync_nb
from nosync.__main__ import main
from nosync_nb import Session
from nosync_nb.collections.functions import signing
from nosync_nb.files.filesystem import Files
from nosync_nb.store.log import owner

EXPECTED = json.loads(golden.EXPECTED.read_text())
WROTE = (EXPECTED["python"], EXPECTED["cloudpickle"])
SAME = (f"{sys.version_info.major}.{sys.version_info.minor}", cloudpickle.__version__) == WROTE
CALLING = {
    "orders": ["pairs", "scaled", "letters", "spread", "wide", "drawn", "edited", "follows"],
    "graph": ["far", "hourly"],
    "forks": [],
}
"""The stages that have a function, the user's or one of `windows`, or read one that has."""

IN_MEMORY = {"brief"}
"""The stages of branches of which nothing is written: they are there for who may run them."""

READABLE = {"orders": 1171, "graph": 432, "forks": 134}
"""How many epochs of stages can be read."""

PLANNED_OTHERWISE = {"orders": 1, "graph": 2, "forks": 0}
"""How many operators the release that wrote a log had not: they are parts of plans, not stages."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without a key, in the zone of the logs."""
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "home" / "key"))
    return tmp_path / "home"


def test_no_owner_tells_of_the_machine_that_wrote_it() -> None:
    owners = [path.parent for path in golden.GOLDEN.rglob("owner")]
    assert len(owners) == len(golden.LABELS) + len(golden.BRANCHES)
    for folder in owners:
        own = owner.read_owner(Files(), str(folder))
        assert own is not None
        lies = golden.PLACE / folder.relative_to(golden.GOLDEN)
        assert own.place == owner.LogLocation(str(lies), 1, 1)


@pytest.fixture(params=golden.LABELS)
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a log, for a user who has imported the key that signed it."""
    assert main(["key", "import", str(golden.carried(tmp_path))]) == 0
    assert signing.key_id(signing.user_key()) == EXPECTED["key"]
    return golden.copied(request.param, tmp_path)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version of what pickles functions, as under another minor version of Python."""
    monkeypatch.setattr(cloudpickle, "__version__", "0.0")


def held_against(
    session: Session, expected: dict[str, Any], labels: dict[str, int] | None = None
) -> Iterator[tuple[str, int]]:
    """Compares all that can be read; gives what was compared."""
    labels = golden.LABELS[Path(session.path).name] if labels is None else labels
    assert session.now == expected["now"]
    assert expected["reads"] == {name: sorted(below) for name, below in session.info.reads.items()}
    for label, at in labels.items():
        for name in session.inputs.keys() - {"draws"}:
            assert session[name].rows(at=label) == session[name].rows(at=at)
    for name, changes in expected["rows"].items():
        ranges: list[range] = []
        now: Counter[str] = Counter()
        by_epoch = {at: (gone, came) for at, gone, came in changes}
        for epochs in session[name].history():
            ranges.append(epochs)
            for at in epochs:
                gone, came = by_epoch.get(at, ((), ()))
                now = Counter(came) if gone is None else now - Counter(gone) + Counter(came)
                assert now == Counter(golden.texts(session[name].rows(at=at))), (name, at)
                yield name, at
        assert [at for at, gone, _ in changes if gone is None] == [r[0] for r in ranges], name
        assert changes[-1][0] == ranges[-1][-1], name


@pytest.mark.fault(7)
def test_every_stage_is_read_at_every_epoch_and_nothing_is_computed(log: Path) -> None:
    expected = EXPECTED[log.name]
    with nosync_nb.open(log, mode="r") as reader:
        read = list(held_against(reader, expected))
    assert len(read) == READABLE[log.name]
    with nosync_nb.open(log) as session:
        assert session.recovery.clean == (log.name == "graph")
        assert not session.recovery.lost
        assert not session.recovery.notes
        again = {n: w for n, w in session.recovery.stages.items() if w != "read"}
        assert again == ({} if SAME else dict.fromkeys(CALLING[log.name], "stale"))
        assert list(held_against(session, expected)) == read
        services_of(session).gate.run_pre_write_tasks()
        assert session.recovery.recomputed == 0
        # Parts without a name that this release plans otherwise are made, once, before a write.
        executed = session.stats["executed"]
        assert executed == PLANNED_OTHERWISE[log.name] or not SAME
    with nosync_nb.open(log) as session:
        services_of(session).gate.run_pre_write_tasks()
        assert session.stats["executed"] == 0


@pytest.mark.fault(45)
@pytest.mark.parametrize("how", ["here", "elsewhere"])
def test_the_epochs_after_an_opening_are_right_in_every_stage(
    log: Path, how: str, request: pytest.FixtureRequest
) -> None:
    """The oracle went on in the process that wrote the log, and was held against a fresh start."""
    if how == "elsewhere":
        request.getfixturevalue("elsewhere")
    gone = set(CALLING[log.name]) if how == "elsewhere" or not SAME else set()
    expected = EXPECTED[log.name]
    with nosync_nb.open(log) as session:
        assert session.stale.keys() == gone
        assert all(
            "function was not restored" in why or "reads" in why for why in session.stale.values()
        )
        before = {name: session[name].rows(at=expected["now"]) for name in gone}
        golden.go_on(session, log.name)
        assert session.now == expected["now"] + 2
        after = {n: rows for n, rows in expected["after"].items() if n not in gone}
        assert golden.newest(session) == after
        for name in gone:
            assert session[name].history()[-1][-1] == expected["now"]
            assert session[name].rows(at=expected["now"]) == before[name]
    with nosync_nb.open(log) as session:
        assert session.recovery.recomputed == 0
        assert session.stale.keys() == gone
        assert golden.newest(session) == after


@pytest.mark.fault(45)
@pytest.mark.parametrize("name", golden.BRANCHES)
@pytest.mark.parametrize("log", ["forks"], indirect=True)
def test_branches_are_listed_read_at_every_epoch_and_go_on(log: Path, name: str) -> None:
    expected = EXPECTED["forks"]["branches"][name]
    with nosync_nb.open(log) as main:
        assert [*main.branches] == sorted({each.partition("/")[0] for each in golden.BRANCHES})
        assert [*main.pins.items()] == [("first", 1), ("kept", 4)]
        assert main.retain == 8
    path = golden.branch_of(log, name)
    written = {n: changes for n, changes in expected["rows"].items() if n not in IN_MEMORY}
    with nosync_nb.open(path, mode="r") as reader:
        read = list(held_against(reader, {**expected, "rows": written}, {"begun": 1}))
        assert len({at for _, at in read}) == expected["now"] + 1
    with nosync_nb.open(path) as branch:
        assert not branch.stale
        assert {*read} <= {*held_against(branch, expected, {"begun": 1})}
        golden.go_on(branch, "forks")
        assert golden.newest(branch) == expected["after"]
    with nosync_nb.open(path) as branch:
        assert branch.now == expected["now"] + 2
        assert golden.newest(branch) == expected["after"]


@pytest.mark.fault(45)
@pytest.mark.parametrize("log", ["forks"], indirect=True)
def test_a_log_goes_back_branches_and_takes_a_branch_away(log: Path) -> None:
    with nosync_nb.open(log) as session:
        before = {name: session[name].rows(at=14) for name in session.stages}
        told = session.rewind(to=14)
        assert (told.left, told.branch) == (16, "before-rewind-3")
        with session.branch("now") as branch:
            assert {name: branch[name].rows() for name in before} == before
        for name in ("now", "before-rewind-3", "before-rewind-1"):
            session.drop_branch(name)
        with pytest.raises(nosync_nb.SchemaError, match="has branches of its own: inner"):
            session.drop_branch("what_if")
        assert [*session.branches] == ["before-rewind-2", "what_if"]


def test_another_user_reads_the_rows_and_gets_no_function(
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
        assert list(held_against(reader, expected))
        told = reader.info.trust()
    assert EXPECTED["key"] in told.whose
    assert "not trusted" in told.whose
    assert {each.whose for each in told.stages} == {f"of key {EXPECTED['key']}"}
    with nosync_nb.open(log) as session:
        assert session.stale.keys() == stages
        assert list(held_against(session, expected))
        assert session.recovery.recomputed == 0


def test_the_golden_logs_are_small_and_name_no_machine(log: Path) -> None:
    files = [path for path in golden.GOLDEN.rglob("*") if path.is_file()]
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
