"""Bounds of decoding: small hostile logs take bounded time and memory.

The real writer writes each log with one step replaced, so that all checksums match. A process with
limited processor time reads and verifies everything.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from faults.compressed_arrow import CompressingArrow, compressed
from internals import checkpoint_now

import nosync_nb
from nosync_nb.store import store
from nosync_nb.store.log import batch_codec
from nosync_nb.trace.history import pack_file
from nosync_nb.trace.parts import arrow_file

ROWS, TEXT = 24, "x" * (2 << 20)
GROWTH_MB_MAX = 40

READ = """
import resource, sys
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
import nosync_nb, pyarrow
from nosync_nb.errors import NosyncError
errors = set()
def tried(call):
    try:
        return call()
    except NosyncError as error:
        errors.add(error.kind)
with nosync_nb.open(sys.argv[1], mode=sys.argv[2]) as session:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name in ("a", "same"):
        for read in (
            lambda: session[name].head(1), lambda: session[name].rows(limit=1),
            lambda: session[name].count(), lambda: session[name].to_arrow(),
            lambda: pyarrow.table(session[name]), lambda: session[name].rows(),
            lambda: session[name].to_pandas(), lambda: session[name].to_arrow(at=1),
            lambda: session[name].changes(after=0, upto=1), lambda: session[name].at(1).count(),
        ):
            tried(read)
    found = tried(session.verify)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(grown // 1024, int(bool(found and found.damage)), *sorted(errors))
"""


class Compressed:
    """A record batch whose message is compressed."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch

    def serialize(self) -> pa.Buffer:
        return compressed(self._batch, "zstd")


class CompressingBatches(CompressingArrow):
    """Arrow with record batches that are compressed when serialised."""

    class RecordBatch:
        @staticmethod
        def from_arrays(*args: Any, **options: Any) -> Any:
            return Compressed(pa.RecordBatch.from_arrays(*args, **options))

    def record_batch(self, *args: Any, **options: Any) -> Any:
        return Compressed(pa.record_batch(*args, **options))


def in_parts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(arrow_file, "pa", CompressingArrow("zstd"))
    patch.setattr(store, "SPILL_ROWS", 8)


def in_packs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pack_file, "pa", CompressingBatches("zstd"))


def in_frames(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(batch_codec, "pa", CompressingBatches("zstd"))


def by_counts(patch: pytest.MonkeyPatch) -> None:
    """Each row has a huge count: a few bytes are terabytes of rows."""
    encode = batch_codec.encode_diff
    patch.setattr(batch_codec, "encode_diff", lambda diff, n: encode(diff * 10**6 * 400, n))


def by_counts_beyond_numbers(patch: pytest.MonkeyPatch) -> None:
    encode = batch_codec.encode_diff
    patch.setattr(batch_codec, "encode_diff", lambda diff, n: encode(diff * 2**61, n))


@pytest.mark.fault(43)
@pytest.mark.parametrize(
    ("craft", "mode"),
    [
        (in_parts, "r"),
        (in_parts, "w"),
        (in_packs, "r"),
        (in_frames, "r"),
        (by_counts, "r"),
        (by_counts_beyond_numbers, "r"),
    ],
)
def test_crafted_log_takes_bounded_memory_and_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, craft: Callable[..., None], mode: str
) -> None:
    size = TEXT if craft in (in_parts, in_packs, in_frames) else TEXT[: 1 << 13]
    rows = pa.table({
        "k": pa.array(np.arange(ROWS, dtype=np.int32)),
        "t": pa.array([[f"{k}", size] for k in range(ROWS)], pa.list_(pa.string())),
    })  # fmt: skip
    path = tmp_path / "log"
    with monkeypatch.context() as patch:
        patch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "theirs"))
        with nosync_nb.open(path) as session:
            own = session.input("a", "k int, t array<string>")
            session.stage("same", own.filter("k >= 0"))
            craft(patch)
            own.insert(rows)
            session.commit(wait="disk")
            checkpoint_now(session)
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", READ, str(path), mode],
        capture_output=True, text=True, env=os.environ | {"NOSYNC_KEY_FILE": f"{tmp_path}/own"},
    )  # fmt: skip
    assert run.returncode == 0, (run.returncode, run.stderr[-2000:])
    grown, damaged, *errors = run.stdout.split()
    assert int(grown) < GROWTH_MB_MAX, run.stdout
    assert errors, "some read is refused"
    if craft in (in_parts, in_packs):
        assert damaged == "1", "verify reports it"
