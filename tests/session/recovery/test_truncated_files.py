"""Truncated files: another program truncates files of rows that are mapped."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import internals
import pytest

import nosync_nb
from nosync_nb.files.filesystem import Files
from nosync_nb.files.memory_map import FileEnd
from nosync_nb.store import store
from nosync_nb.trace.parts.arrow_file import file_ending, map_file

CASES = """
import os, sys
from pathlib import Path
import nosync_nb
from internals import checkpoint_now
from nosync_nb.errors import CorruptLogError
from nosync_nb.store import store

store.SPILL_ROWS = 8
ROWS = 3000
CUTS = {"to nothing": lambda size: 0, "in the middle": lambda size: size // 2 // 8 * 8,
        "by a page": lambda size: size - 4096, "by a byte": lambda size: size - 1}
READS = {
    "rows": lambda s: s["a"].rows(),
    "head": lambda s: s["a"].head(3),
    "by": lambda s: s["a"].head(3, by="t desc"),
    "count": lambda s: s["a"].count(),
    "arrow": lambda s: s["a"].to_arrow(),
    "stage": lambda s: s["joined"].to_arrow(),
    "past": lambda s: s["a"].to_arrow(at=1),
    "changes": lambda s: s["a"].changes(after=0, upto=2),
    "commit": lambda s: (s.inputs["b"].insert([(1, 2)]), s.commit()),
}

def begun(path):
    s = nosync_nb.open(path)
    a, b = s.input("a", "k int, t string"), s.input("b", "k int, n int")
    s.stage("joined", a.join(b, on="k"))
    for part in range(2):
        a.insert([(k, f"text {k}") for k in range(part * ROWS, (part + 1) * ROWS)])
        s.commit(wait="disk")
    checkpoint_now(s)
    return s

def case(path, mapped, read, cut):
    s = begun(path)
    if mapped != "written":
        s.close()
        s = nosync_nb.open(path, mode="r" if mapped == "followed" else "w")
    if mapped == "followed" and read == "commit":
        return "reported"
    try:
        s["a"].to_arrow(), s["joined"].to_arrow(), s["a"].to_arrow(at=1)
        if mapped != "followed":
            READS["commit"](s)
        for folder in ("layers", "history"):
            for file in Path(path, folder).iterdir():
                os.truncate(file, max(0, CUTS[cut](file.stat().st_size)))
        READS[read](s)
        return "read"
    except CorruptLogError as error:
        return "reported" if error.file and error.hint else "no file"
    finally:
        s.close()

for mapped in ("written", "opened", "followed"):
    for number, read in enumerate(READS):
        for cut in CUTS if read == "arrow" else [[*CUTS][number % len(CUTS)]]:
            name = f"{mapped}, {read}, {cut}"
            print(f"{name}: {case(sys.argv[1] + '/' + name.replace(' ', '-'), mapped, read, cut)}")
            sys.stdout.flush()
"""


@pytest.mark.fault(14, 41)
def test_truncated_file_is_an_error_of_the_call_and_ends_no_process(tmp_path: Path) -> None:
    support = str(Path(internals.__file__).parent)
    env = os.environ | {"NOSYNC_KEY_FILE": str(tmp_path / "key"), "PYTHONPATH": support}
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CASES, str(tmp_path)],
        capture_output=True, text=True, env=env,
    )  # fmt: skip
    assert run.returncode == 0, (run.returncode, run.stdout, run.stderr)
    lines = run.stdout.splitlines()
    assert len(lines) == 3 * 12
    # A read with a cached result does not touch the files.
    assert {line for line in lines if not line.endswith(": reported")} <= {
        line for line in lines if line.endswith(": read") and ", arrow, " not in line
    }, lines
    assert sum(line.endswith(": reported") for line in lines) >= 3 * 7, lines


@pytest.mark.parametrize("left", [0, 8, 4096, 8192, 12287])
def test_truncation_of_a_mapped_file_is_detected(tmp_path: Path, left: int) -> None:
    file = tmp_path / "part.arrow"
    file.write_bytes(b"x" * 12288)
    data = map_file(str(tmp_path), file.name, Files())
    end = file_ending(data)
    assert isinstance(end, FileEnd)
    assert end.is_there()
    file.unlink()
    assert end.is_there(), "an unlinked file exists as long as it is mapped"
    file.write_bytes(b"x" * 12288)
    data = map_file(str(tmp_path), file.name, Files())
    end = file_ending(data)
    os.truncate(file, left)
    file.rename(tmp_path / "other")
    file.write_bytes(b"x" * 12288)
    assert not end.is_there(), "although another file has its name"


@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.fault(14, 41)
def test_truncated_file_is_repaired_from_a_replica_and_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_key: None, *, reopened: bool
) -> None:
    monkeypatch.setattr(store, "SPILL_ROWS", 8)
    path, url = tmp_path / "x.nosync", f"file://{tmp_path}/replica"
    session = nosync_nb.open(path, replicas=[url])
    texts = session.input("a", "k int, t string")
    texts.insert([(k, f"text {k}") for k in range(3000)])
    session.commit(wait="replicas", timeout=120)
    if reopened:
        session.close()
        session = nosync_nb.open(path)
    with session:
        before = session["a"].rows()
        for file in (path / "layers").iterdir():
            os.truncate(file, 4096)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the repair
            assert session["a"].rows() == before
            assert session["a"].head(1) == [(0, "text 0")]
