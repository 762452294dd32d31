"""A lost log in a notebook: restored from replicas, offered, or reset."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest
from jupyter.kernels import Kernel

FLIGHTS = (
    'flights = nosync.input("flights", "carrier string, delay int")\n'
    'flights.insert([("AA", 10), ("AA", 30), ("UA", 5)], once="first")'
)
DELAYS = '%%dd\ndelays = flights.group_by("carrier").agg(n="count(*)", worst="max(delay)")'
SHOW = "print([tuple(row) for row in nosync.session()['delays'].rows()])"
VALUES = "[('AA', 2, 30), ('UA', 1, 5)]"


@pytest.fixture
def notebook_without_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a notebook whose log had a replica and was deleted."""
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "keys" / "key"))
    with closing(Kernel(tmp_path)) as kernel:
        for cell in (FLIGHTS, DELAYS, f"%dd replicas add file://{tmp_path}/copies"):
            assert kernel.run(cell).status == "ok"
        assert kernel.run("%dd sync replicas").status == "ok"
    shutil.rmtree(tmp_path / ".nosync")
    return tmp_path


@pytest.mark.fault(33)
def test_notebook_of_lost_log_restores_it_from_replicas(notebook_without_log: Path) -> None:
    listed = notebook_without_log / "keys" / "replicas.json"
    assert listed.stat().st_mode & 0o777 == 0o600
    with closing(Kernel(notebook_without_log)) as kernel:
        reply = kernel.run(SHOW)
        assert "restored from" in reply
        assert VALUES in reply
        assert kernel.run("flights.insert([('UA', 9)])").status == "ok"
        assert "('UA', 2, 9)" in kernel.run(SHOW)


@pytest.mark.fault(33)
def test_other_notebook_is_offered_restore_command(notebook_without_log: Path) -> None:
    with closing(Kernel(notebook_without_log, notebook="other.ipynb")) as kernel:
        reply = kernel.run(FLIGHTS)
        (line,) = [line for line in reply.text.splitlines() if "is missing" in line]
        assert "%dd open .nosync/flights" in line
        assert VALUES in kernel.run(f"%dd open .nosync/flights\n{SHOW}")


@pytest.mark.fault(33, 34)
def test_reset_starts_new_log_after_deletion(notebook_without_log: Path) -> None:
    (notebook_without_log / "copies").rename(notebook_without_log / "away")
    with closing(Kernel(notebook_without_log)) as kernel:
        reply = kernel.run(SHOW)
        assert reply.status == "error"
        assert "%dd reset" in reply
        assert kernel.run("%dd reset").status == "ok"
        assert kernel.run(FLIGHTS).status == "ok"
        assert kernel.run(DELAYS).status == "ok"
        assert VALUES in kernel.run(SHOW)
        assert "restored" not in kernel.run("%dd recover")
