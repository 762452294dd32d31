"""Session window kernel: negative counts, equal hashes, long sessions, and work by counters.

The results for times of all kinds are in test_windows.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from checks.checking import run
from hypothesis import given
from hypothesis import strategies as st
from models import model
from models.batch_model import weak_hashes
from models.model import Bag

import nosync_nb
from nosync_nb import Session, StageError
from nosync_nb.collections.library import windows
from nosync_nb.operators import session_windows

START = datetime(2013, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
SIDE = ("string", "timestamp", "int")

pytestmark = pytest.mark.usefixtures("no_disk")


@pytest.fixture(scope="module", autouse=True)
def _small_first_lookup() -> Iterator[None]:
    """Makes the first lookup so small that a second one is needed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session_windows, "_LOOK", 1)
        patch.setattr(session_windows, "_FURTHER", 2)
        yield


def session_rows(bag: Bag) -> Bag:
    """Rows (key, time, n) in sessions that end after 2 minutes without rows."""
    found = {}
    for row, n in bag.items():
        if n <= 0 or row[1] is None:
            continue
        near = sorted(r[1] for r, m in bag.items() if m > 0 and r[0] == row[0] and r[1] is not None)
        first = last = row[1]
        for time in reversed(near):
            first = time if first - 2 * MINUTE <= time <= first else first
        for time in near:
            last = time if last <= time <= last + 2 * MINUTE else last
        found[(*row, first, last + 2 * MINUTE)] = n
    return model.summed(found.items())


rows = st.tuples(
    st.none() | st.sampled_from("xy"),
    st.none() | st.integers(0, 20).map(lambda n: START + n * MINUTE),
    st.integers(0, 1),
)


@given(st.data())
def test_negative_count_is_no_row_of_session(data: st.DataObject) -> None:
    run(
        data,
        {"a": SIDE, "b": SIDE},
        lambda a, b: windows.sessions(a.concat(b.negate()), on="c1", gap="2 minutes", keys="c0"),
        lambda a, b: session_rows(model.concat(a, model.negated(b))),
        pools={"a": rows, "b": rows},
    )


@given(st.data())
def test_sessions_of_keys_with_equal_hashes_stay_apart(data: st.DataObject) -> None:
    with weak_hashes():
        run(
            data,
            {"a": SIDE},
            lambda a: windows.sessions(a, on="c1", gap="2 minutes", keys="c0"),
            session_rows,
            pools={"a": rows},
        )


def test_change_touches_its_sessions_only(tmp_path: Path) -> None:
    touched = []
    for size in (1_000, 30_000):
        with nosync_nb.open(tmp_path / str(size), spark_rows=10**9) as session:
            visits = session.input("visits", "k string, at timestamp")
            visits.insert([("x", START + (i + i // 5 * 30) * MINUTE) for i in range(size)])
            session.commit()
            made = windows.sessions(visits, on="at", gap="5 minutes", keys="k")
            session.stage("made", made)
            middle = START + size // 10 * 35 * MINUTE
            spent = []
            for minutes in (2, 7, 15):  # inside a session, at its end, between two
                for change in (visits.insert, visits.remove):
                    before = session.stats["touched"]
                    change([("x", middle + minutes * MINUTE + timedelta(seconds=1))])
                    session.commit()
                    spent.append(session.stats["touched"] - before)
            touched.append(spent)
    assert all(more <= less + 20 for less, more in zip(*touched, strict=True))
    assert max(touched[1]) < 400


def test_session_that_ends_after_year_9999_is_stage_error(session: Session) -> None:
    visits = session.input("visits", "at timestamp")
    visits.insert([(START,)])
    session.commit()
    for gap in ("3000000 days", timedelta.max):
        with pytest.raises(StageError, match="a session ends after the year 9999"):
            windows.sessions(visits, on="at", gap=gap).rows()
    assert len(windows.sessions(visits, on="at", gap="1 day").rows()) == 1
