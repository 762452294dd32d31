"""The access of tests and of the bench to internals of a session and of other objects.

For tests that check an implementation step or make it fail. No other file of tests and of the bench
uses the services of a session, a private name of another module, or assigns an attribute of another
object; a house test enforces that.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from nosync_nb import Collection, Session
from nosync_nb.collections.functions import closure, signing
from nosync_nb.collections.library import event_time
from nosync_nb.dataflow.graph import Graph
from nosync_nb.dataflow.snapshot import Snapshot
from nosync_nb.dataflow.stage import Stage
from nosync_nb.files.filesystem import File, Files
from nosync_nb.operators.aggregates.slot_cache import SlotCache
from nosync_nb.operators.iterate.loop import Loop, LoopCostEstimate
from nosync_nb.session.maintenance import maintenance
from nosync_nb.session.maintenance.offloaded_merges import OffloadedMerges
from nosync_nb.session.session import services_of as services_of
from nosync_nb.spark.connection import SparkConnection
from nosync_nb.spark.execution.placement import Placement
from nosync_nb.spark.staging import staging
from nosync_nb.spark.staging.location import StagingArea
from nosync_nb.store import store
from nosync_nb.store.lazy_layer import files_needed
from nosync_nb.store.log import checkpoint, writer
from nosync_nb.store.log.fencing import ControlBlock, WriterLease
from nosync_nb.store.log.log import Log
from nosync_nb.store.log.writer import Writer
from nosync_nb.store.records import payloads
from nosync_nb.store.replication import remote_call
from nosync_nb.store.store import Store
from nosync_nb.trace import Trace, batch, compaction, paging, stats
from nosync_nb.trace.batch import Batch
from nosync_nb.trace.history import sections
from nosync_nb.trace.history.archive import Archive
from nosync_nb.trace.history.history import History
from nosync_nb.trace.history.pack_file import Pack
from nosync_nb.trace.history.pack_tree import PackNode
from nosync_nb.trace.history.sections import Entry, FiledChange
from nosync_nb.trace.parts import arrow_file

if TYPE_CHECKING:
    import pytest

    from nosync_nb.spark.views import snapshot_server

# -- the services of a session --------------------------------------------------------------------


def store_of(session: Session) -> Store:
    return services_of(session).publisher.store


def log_of(session: Session) -> Log:
    return store_of(session).log


def parts_folder(session: Session) -> str:
    return store_of(session).parts


def history_of(session: Session) -> History:
    return store_of(session).history


def snapshot_of(session: Session) -> Snapshot:
    return services_of(session).publisher.snapshot


def graph_of(session: Session) -> Graph:
    return snapshot_of(session).graph


def catalog_of(session: Session) -> Mapping[str, Stage]:
    return snapshot_of(session).catalog


def traces_of(session: Session) -> Mapping[int, Trace]:
    return snapshot_of(session).version.traces


def notices_of(session: Session) -> deque[str]:
    return services_of(session).subscriptions.notices


def checkpoint_now(session: Session) -> None:
    services_of(session).maintenance.checkpoint()


def merge_trace(session: Session, number: int) -> None:
    services_of(session).maintenance.merge(number)


def offloaded_merges_of(session: Session) -> OffloadedMerges:
    """Returns the merges that were requested from the keeper."""
    return services_of(session).maintenance._merges


def settle_background(session: Session) -> None:
    """Waits for the background tasks; raises the first error that was not reported."""
    services_of(session).worker.settle()


def drain_background(session: Session, seconds: float | None = None) -> None:
    services_of(session).worker.drain(seconds)


# -- a session ------------------------------------------------------------------------------------


def give_spark(session: Session, spark: Any) -> None:
    """Makes a session use a Spark session as if it had been opened with it."""
    services_of(session).spark_connection._given = spark


@contextmanager
def spark_unseen() -> Iterator[None]:
    """Hides the active Spark session from sessions that are opened without it.

    Starting Spark fails: its settings would be those of every later test in this process.
    """
    import pytest

    from nosync_nb.spark import launch

    def refuse(_settings: object) -> None:
        raise RuntimeError("a test that starts Spark is marked `spark`")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SparkConnection, "_may_exist", lambda link: link._given is not None)
        patch.setattr(launch, "_launch", refuse)
        yield


class TellingLock:
    """A lock that calls `told` when a thread waits for it."""

    def __init__(self, told: Callable[[], None]) -> None:
        self._lock, self._told = threading.Lock(), told

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._told()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def on_second_checkpoint(session: Session, told: Callable[[], None]) -> None:
    """Calls `told` when a checkpoint waits for another one."""
    services_of(session).maintenance._checkpointing = TellingLock(told)  # type: ignore[assignment]


def lose_patience(session: Session) -> None:
    """Lets a failed checkpoint be retried as if the log had grown."""
    services_of(session).maintenance.patience = 0


def rebuild(session: Session) -> None:
    """Rebuilds missing operator state in this thread."""
    services_of(session).background_rebuild._run_in_worker()


def repeats_of(session: Session) -> object:
    """The cached load keys from before the session was opened."""
    return services_of(session).load_registry.repeated_loads._state


def batch_of(collection: Collection) -> Batch:
    return collection._read(None)


def slots_of(placement: Placement, spark: Any) -> int:
    return placement._slots(spark)


# -- functions and keys ---------------------------------------------------------------------------


SIGNED = len(signing._MAGIC) + signing.ID_BYTES + signing._MAC_BYTES
"""The offset at which the signed bytes of a signed function begin."""


def signed_again(data: bytes, key: bytes, signed: bytes) -> bytes:
    """A signed function with other contents and a valid signature."""
    return data[: SIGNED - signing._MAC_BYTES] + signing._mac(key, "", signed) + signed


def other_versions(patch: pytest.MonkeyPatch, **versions: str) -> dict[str, str]:
    """Simulates another version of Python or cloudpickle; returns the true ones."""
    here = signing._environment()
    patch.setattr(signing, "_environment", lambda: {**here, **versions})
    return here


def kernel_identities() -> int:
    """The number of functions with an identity in this kernel only."""
    return len(closure._kernel_identities)


def share_utc(module: Any, patch: pytest.MonkeyPatch) -> None:
    """Shares the zone check of `event_time` with a copy of the module."""
    patch.setattr(module, "_utc", event_time._utc)


# -- operators and traces -------------------------------------------------------------------------


def known_of(memo: SlotCache[Any]) -> int:
    return len(memo._known)


def worked(effort: LoopCostEstimate, whole: int) -> None:
    """Records the cost of a loop that was recomputed."""
    effort.whole = whole


def on_few(patch: pytest.MonkeyPatch, told: Callable[[bool], None]) -> None:
    """Reports for each run of a loop on the row path whether it succeeded."""
    original = Loop._run_on_rows

    def run(loop: Loop, step: Any, effort: LoopCostEstimate, budget: int, mirror: Any) -> Any:
        found = original(loop, step, effort, budget, mirror)
        told(found is not None)
        return found

    patch.setattr(Loop, "_run_on_rows", run)


def _watch(patch: pytest.MonkeyPatch, owner: Any, name: str, told: Callable[..., None]) -> None:
    """Calls `told` with the arguments before each call of a function."""
    original = getattr(owner, name)

    def watched(*given: Any) -> Any:
        told(*given)
        return original(*given)

    patch.setattr(owner, name, watched)


def on_sorted(patch: pytest.MonkeyPatch, told: Callable[[int], None]) -> None:
    """Reports the number of rows of each sort."""
    _watch(patch, batch, "_sort_and_consolidate", lambda *given: told(len(given[4])))


def on_enough(patch: pytest.MonkeyPatch, told: Callable[[int], None]) -> None:
    """Reports the number of rows that each count check reads."""
    _watch(patch, stats, "_are_nonnegative", lambda *given: told(len(given[2])))


def on_places(patch: pytest.MonkeyPatch, told: Callable[[int], None]) -> None:
    """Reports the number of row positions that a count looks up in each part."""
    _watch(patch, stats, "_row_positions", lambda *given: told(len(given[1])))


def on_compared(patch: pytest.MonkeyPatch, told: Callable[[str], None]) -> None:
    """Reports the part files whose checksums are verified."""
    _watch(patch, arrow_file, "_check_blocks", lambda *given: told(given[3]))


def on_first(patch: pytest.MonkeyPatch, told: Callable[[int], None]) -> None:
    """Reports the number of rows among which the first ones are searched."""
    _watch(patch, paging, "_first_of_part", lambda *given: told(len(given[0])))


def tree_of(history: History) -> tuple[PackNode, ...]:
    return history._view.tree


def tails_of(history: History) -> dict[int, list[Entry]]:
    return history._view.tails


def archive_of(history: History) -> Archive:
    return history._archive


def directory_of(pack: Pack) -> list[list[int]]:
    """The trace, offset, bytes, checksum and header bytes of each section of a pack."""
    return pack._directory


def decode_section(pack: Pack, content: bytes, entry: list[int], checksum: int) -> None:
    """Decodes a section as if the file had other bytes."""
    number, offset, size, _, head = entry
    pack._data = pa.py_buffer(content)
    pack._section(number, offset, size, checksum, head)


# -- the log --------------------------------------------------------------------------------------


def words_of(log: Log) -> ControlBlock:
    return log._words


def writer_of(log: Log) -> Writer:
    assert log._writer is not None
    return log._writer


def lease_of(log: Log) -> WriterLease:
    return writer_of(log)._lease


def disk_of(log: Log) -> Files:
    return log._files


def lose_file(log: Log) -> None:
    """Closes the file that a log appends to, as the death of its process does."""
    writer_of(log)._file.close()


@contextmanager
def no_flush(log: Log) -> Iterator[None]:
    """Keeps appended bytes from the disk inside the block."""
    flushing = writer_of(log)._flushing
    flushing.acquire()
    try:
        yield
    finally:
        flushing.release()


@contextmanager
def asked_here() -> Iterator[None]:
    """Runs remote calls in the calling thread, as if no replica could hang."""
    import pytest

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remote_call.RemoteCall, "start", remote_call.RemoteCall.run)
        yield


def descriptor_of(file: File) -> int:
    return file._fd


def frame_of(epoch: int, text: bytes) -> bytes:
    return payloads._HEAD.pack(epoch, 0.0, len(text)) + text


def lower_thresholds() -> None:
    """Makes files, checkpoints, packs and merges small, for a whole process."""
    store.SPILL_ROWS = maintenance.SPILL_ROWS = 36
    store.SPILL_BYTES, store.SETTLED_BYTES = 800, 200
    compaction.RANGE_ROWS = 200
    checkpoint.FRAMES_MAX = 40
    writer.SEGMENT_BYTES_MAX = 64 << 10
    compaction.INLINE_ROWS, compaction.YOUNG_ROWS = 32, 8
    sections.LARGE = 30


# -- Spark and the notebook -----------------------------------------------------------------------


def is_seen(spark: Any, folder: str) -> bool:
    return staging._workers_see_files(spark, StagingArea(folder))


def looked() -> int:
    """The number of parts that an executor has verified."""
    from nosync_nb.spark.execution import tasks

    return len(tasks._looked)


def served(folder: str, name: str) -> snapshot_server.StageSnapshot:
    """The snapshot that a reader of a view gets of a stage."""
    from nosync_nb.spark.views import snapshot_server

    return snapshot_server._read_folder(folder, name, None, None)


def ended(server: snapshot_server.SnapshotServer) -> bool:
    """Waits for the end of a snapshot server; returns whether it has ended."""
    server._thread.join(60)
    return not server._thread.is_alive()


def asked(view: Any, content: dict[str, Any]) -> None:
    """Sends a message to a view as the front end does."""
    view._handle_custom_msg(content, [])


def process_of(kernel: Any) -> Any:
    return kernel._manager.provisioner.process


def is_held(lock: Any) -> bool:
    return bool(lock._is_owned())


def files_of_log(history: History, trace: int) -> set[str]:
    """The part files with changes of a trace, without those of sums."""
    view, archive = history._view, history._archive
    tail = [c.refs for _, c in view.tails.get(trace, ()) if isinstance(c, FiledChange)]
    leaves = [node for top in view.tree for node in top.walk() if not node.children]
    packed = [s.large for node in leaves for s in archive.pack(node).sections(trace)]
    tail += [refs for large in packed for _, refs in large]
    return {ref.path for refs in tail for ref in refs}


def files_with(session: Session, name: str) -> set[str]:
    """The files of the rows, the history and the operator state of a stage."""
    seen = snapshot_of(session)
    node = seen.graph.named[name]
    assert node.log is not None
    held = [seen.version.traces.get(n) for n in (*node.traces.values(), *node.state)]
    found = {file for trace in held if trace is not None for file in files_needed(trace)}
    return found | set(files_of_log(history_of(session), node.log))


def sleeps(thread: threading.Thread) -> bool:
    assert thread.ident is not None
    frame = sys._current_frames().get(thread.ident)
    join: Any = threading.Thread.join
    join = getattr(threading.Thread, "_wait_for_tstate_lock", join)  # Python 3.13 has none
    return frame is not None and frame.f_code in (threading.Condition.wait.__code__, join.__code__)
