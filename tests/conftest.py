"""What every test shares: profiles of hypothesis, and what the machine must have.

A test that needs Chromium or Java is skipped where there is none. Under CI nothing is skipped:
the test fails and says what is missing. What the machine forbids is another matter (see
`matrix.forbidden`): that is counted in the last line.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ci_shares import Shares
from fault_matrix import pytest_report_teststatus, pytest_terminal_summary, rows  # noqa: F401 - hooks
from hypothesis import HealthCheck, Phase, settings
from machines import jvm

if TYPE_CHECKING:
    from nosync_nb import Session

# The speed of a shared machine is no property of the code, hence no deadlines.
settings.register_profile(
    "default",
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "ci",
    max_examples=25,  # the promises; nightly and soaks try the cases
    derandomize=True,  # a change is judged by the same cases as the one before it; soaks find new
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "nightly", parent=settings.get_profile("ci"), max_examples=10_000, derandomize=False
)
settings.register_profile(  # a mutant is killed by any case, not by the smallest
    "mutate",
    parent=settings.get_profile("ci"),
    phases=[Phase.explicit, Phase.generate],
    database=None,
)
os.environ.update(jvm.environment())
MEMORY = "/dev/shm"
IN_MEMORY = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 1 << 30
"""Whether folders of tests lie in memory, as the tests of each failure of a disk make their own."""
if IN_MEMORY:  # where pytest makes `tmp_path`
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)
CI = os.environ.get("CI", "").lower() not in ("", "0", "false")
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if CI else "default"))


@cache
def chromium_path() -> str | None:
    """Returns the browser of the tests, or None."""
    names = (os.environ.get("NOSYNC_CHROMIUM"), "chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if name and (path := shutil.which(name))), None)


@cache
def java_path() -> str | None:
    """Returns a Java for Spark, or None; `make test` exports one that works."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which(os.path.join(home, "bin", "java") if home else "java")


def pytest_configure(config: pytest.Config) -> None:
    """Adds up what each share of the run takes, where the reports of all workers come together."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Shares())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the files that take longest first: two run at a time, and both end together."""
    long = {i.path for i in items if any(map(i.get_closest_marker, ("slow", "browser", "spark")))}
    items.sort(key=lambda item: item.path not in long)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what this machine cannot run; under CI it fails instead."""
    if held := rows(item):
        item.user_properties.append(("fault", held))
    missing = None
    if item.get_closest_marker("browser") and chromium_path() is None:
        missing = "browser test: no Chromium (apt install chromium, or set NOSYNC_CHROMIUM)"
    elif item.get_closest_marker("spark") and java_path() is None:
        missing = "spark test: no Java 17 or later (run `make setup`)"
    if missing and CI:
        pytest.fail(missing, pytrace=False)
    elif missing:
        pytest.skip(missing)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Hides the Spark session of other tests from those that are not of Spark."""
    if item.get_closest_marker("spark") is not None:
        return (yield)
    from internals import spark_unseen

    with spark_unseen():
        return (yield)


@pytest.fixture(scope="module")
def no_disk() -> Iterator[None]:
    """Does without waiting for the disk, where that is not the matter.

    Folders that tests make for each example lie in memory, if there is such a place: on a disk,
    removing them takes longer than what they are made for.
    """
    from nosync_nb.files.filesystem import File, Files

    with pytest.MonkeyPatch.context() as patch:
        if IN_MEMORY:
            patch.setattr(tempfile, "tempdir", MEMORY)
        patch.setattr(File, "sync", lambda file: None)
        patch.setattr(Files, "sync_folder", lambda files, path: None)
        yield


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    """A session over an empty folder; modules that need something in it have their own."""
    import nosync_nb

    with nosync_nb.open(tmp_path / "log") as session:
        yield session


@pytest.fixture
def own_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The logs of a test are signed with a key of its own."""
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "key"))


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Session]]:
    """Opens logs of the test, `log` by default; every session is closed at the end."""
    import nosync_nb

    sessions: list[Session] = []

    def open_(name: str = "log", **options: Any) -> Session:
        sessions.append(nosync_nb.open(tmp_path / name, **options))
        return sessions[-1]

    yield open_
    for session in reversed(sessions):
        session.close()


@pytest.fixture
def large_from_ten_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes batches of more than ten rows to files."""
    spill_above(10, monkeypatch)


@pytest.fixture
def large_from_four_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes batches of more than four rows to files."""
    spill_above(4, monkeypatch)


def spill_above(rows: int, patch: pytest.MonkeyPatch) -> None:
    from nosync_nb.session.maintenance import maintenance
    from nosync_nb.store import store

    patch.setattr(store, "SPILL_ROWS", rows)
    patch.setattr(maintenance, "SPILL_ROWS", rows)


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of the browser; only for tests marked `browser`."""
    path = chromium_path()
    assert path is not None
    return path


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The Spark session of all tests, small, in UTC; only for tests marked `spark`.

    A failed task is tried again, as on a cluster.
    """
    from nosync_nb.spark import launch

    found = launch.start_session(
        {
            "spark.master": "local[2,4]",
            "spark.app.name": "nosync-tests",
            "spark.log.level": "OFF",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "2",
        }
    )
    yield found
    launch.stop_session(found)


@pytest.fixture
def second_spark_session(spark: Any) -> Iterator[Any]:
    """Another session of the same Spark, with settings of its own.

    `createDataFrame` makes a session the active one of its thread. Afterwards the session of all
    tests is active again: a later test must not find this one and its settings.
    """
    yield spark.newSession()
    spark.createDataFrame([(1,)], "x int")
    assert spark.getActiveSession() is spark
