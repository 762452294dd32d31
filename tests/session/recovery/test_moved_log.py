"""A log with another key, number of cores and number of partitions."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from checks.sessions import wait_until_level
from internals import log_of

import nosync_nb
from nosync_nb import Session
from nosync_nb.session.state.report import STALE
from nosync_nb.store.catalog import signature
from nosync_nb.trace.parts import part_file

WAIT_S = 120.0
ROWS = 70_000


def halved(row: Any) -> dict[str, int]:
    return {"half": row.n // 2}


def describe(session: Session) -> None:
    """Defines two stages, one of them with a Python function."""
    edges = session.inputs["edges"]
    degrees = session.stage("degrees", edges.group_by("src").agg(n="count(*)"))
    session.stage("halves", degrees.map(halved, "half long"))


def lose_log(path: Path, urls: list[str]) -> tuple[list[Any], str]:
    """Makes a replicated log and deletes its folder; returns the rows of a stage and the log id."""
    with nosync_nb.open(path, replicas=urls) as session:
        session.input("edges", "src int, dst int").insert([(i % 100, i) for i in range(ROWS)])
        describe(session)
        session.commit()
        session.sync("replicas", timeout=WAIT_S)
        rows = session["halves"].rows()
        log_id = log_of(session).id.hex()
    shutil.rmtree(path)
    return rows, log_id


@pytest.mark.fault(33, 43)
@pytest.mark.parametrize("way", ["cell", "key"])
def test_log_without_its_key_names_stages_to_run_again_or_needs_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "home" / "key"))
    path, urls = tmp_path / "x.nosync", [f"file://{tmp_path}/replica-{i}" for i in range(2)]
    rows, log_id = lose_log(path, urls)
    signature.export_user_key(str(tmp_path / "exported"))
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "empty" / "key"))
    with pytest.raises(nosync_nb.SchemaError, match="another key") as caught:
        nosync_nb.open(path, replicas=urls)
    assert "key import" in str(caught.value.hint)
    assert not path.exists()
    if way == "key":
        signature.import_user_key(str(tmp_path / "exported"))
        with nosync_nb.open(path, replicas=urls) as session:
            assert session.stale == {}
            check_continues(session, rows)
        return
    with nosync_nb.open(path, replicas=[f"{url}#{log_id}" for url in urls]) as session:
        assert session.recovery.stages == {"degrees": STALE, "halves": STALE}
        report = str(session.recovery)
        assert "halves" in report
        assert "cell" in report
        assert session["halves"].rows() == rows
        assert session.recovery.recomputed == 0
        describe(session)
        assert session.stale == {}
        check_continues(session, rows)


def check_continues(session: Session, rows: list[Any]) -> None:
    assert session["halves"].rows() == rows
    session.inputs["edges"].insert([(1000, 1)] * 4)
    session.commit()
    assert session["halves"].count() == len(rows) + 1
    assert session["halves"].rows()[0] == (2,)


PROGRAM = """
import hashlib, os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
import pyarrow
pyarrow.set_cpu_count(1)
import nosync_nb
with nosync_nb.open(sys.argv[2], replicas=sys.argv[3:], quorum=1) as session:
    names = ("edges", "degrees")
    contents = [(name, at, session[name].rows(at=at)) for name in names for at in (1, 2)]
    print(hashlib.sha256(repr(contents).encode()).hexdigest(), session.recovery.recomputed)
"""


@pytest.mark.fault(33)
def test_other_cores_parts_and_replicas_change_no_rows_and_recompute_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "home" / "key"))
    path, urls = tmp_path / "x.nosync", [f"file://{tmp_path}/replica-{i}" for i in range(3)]
    monkeypatch.setattr(part_file.split, "__defaults__", (7000, part_file.BYTES_MAX))
    with nosync_nb.open(path, replicas=urls) as session:
        edges = session.input("edges", "src int, dst int")
        session.stage("degrees", edges.group_by("src").agg(n="count(*)"))
        edges.insert([(i % 100, i) for i in range(ROWS)])
        session.commit()
        edges.remove([(i % 100, i) for i in range(0, ROWS, 2)])
        session.commit()
        session.sync("replicas", timeout=WAIT_S)
        contents = [(n, at, session[n].rows(at=at)) for n in ("edges", "degrees") for at in (1, 2)]
        layers = list((path / "layers").iterdir())
        assert len(layers) >= ROWS // 7000
        wait_until_level(session)
    digest = hashlib.sha256(repr(contents).encode()).hexdigest()
    for core in sorted(os.sched_getaffinity(0))[:2]:
        shutil.rmtree(path)
        arguments = [str(core), str(path), *urls[1:]]
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *arguments],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert done.stdout.split() == [digest, "0"], done.stderr
