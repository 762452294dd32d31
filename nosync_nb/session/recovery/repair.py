"""Resumes stopped stages, computes stages without rows, and repairs damaged files and stages.

The plans are made by `backfill/damage.py` and `backfill/definition_diff.py`. They are carried out
when a log is opened, and when a call finds a damaged file.

Each stage is repaired by a definition of its own that changes no meaning. Its frame names the
rebuilt traces, and a new log if the stage was run. An interrupted repair continues with the stages
that are still damaged.

IMPORTANT: repairs come before merges and checkpoints are planned, because these would read the
missing files. A checkpoint follows, after which no frame that is replayed names a lost file.

A call that finds a damaged file fails without any change, as it does without replicas. Before the
error reaches the caller, the file is looked for at the replicas. If one of them has a file with the
digest in the log, it replaces the damaged one, and the call is retried. Otherwise the data is
rebuilt from the log, or recomputed, as at an opening that misses the file. Stages that cannot be
rebuilt stop, but only if all replicas have answered, because a replica that is offline may have the
file.

IMPORTANT: the caller asks the replicas without holding a lock of the session. The requests run in a
thread that may hang, and continue as long as data arrives; other threads commit meanwhile.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from typing import TypeVar

from nosync_nb.dataflow.stage import RefutedState, Stage
from nosync_nb.errors import CorruptLogError, NosyncError, StageError, one_line
from nosync_nb.files.filesystem import Files
from nosync_nb.session.backfill import damage, definition_diff
from nosync_nb.session.backfill.execute import BackfillExecutor
from nosync_nb.session.backfill.plan import REPLAY, BackfillPlan
from nosync_nb.session.durability.replication import ReplicationService
from nosync_nb.session.maintenance.maintenance import Maintenance
from nosync_nb.session.state.publisher import Publisher
from nosync_nb.session.state.report import READ, RECOMPUTE, STALE, RecoveryReport
from nosync_nb.session.state.subscriptions import Subscriptions
from nosync_nb.session.state.writer_lock import WriterLock
from nosync_nb.store.log.owner import HostIdentity
from nosync_nb.store.replication.address import ReplicaAddress
from nosync_nb.store.replication.comparison import verified_local_files
from nosync_nb.store.replication.config import ReplicaConfig
from nosync_nb.store.replication.endpoints import open_copy
from nosync_nb.store.replication.remote_call import Beat, call_remote
from nosync_nb.store.replication.restore import repair
from nosync_nb.store.replication.restore.repair import RepairedFile
from nosync_nb.store.store import Store
from nosync_nb.store.verification.report import VerificationReport
from nosync_nb.store.verification.survey import survey_log
from nosync_nb.store.verification.verify import ImmutableFile, completed_report, immutable_files
from nosync_nb.trace.history.pack_plans import YieldingPause

FILES_MAX = 3
"""Files that one message names; the others are counted."""


class StageRecovery:
    """Resumes and repairs stages; has no state of its own. The caller holds the writer's lock."""

    def __init__(
        self,
        writer_lock: WriterLock,
        publisher: Publisher,
        executor: BackfillExecutor,
        maintenance: Maintenance,
        report: RecoveryReport,
    ) -> None:
        self._writer_lock = writer_lock
        self._publisher = publisher
        self._executor = executor
        self._maintenance = maintenance
        self._report = report

    def resume(self, *, differs: bool) -> None:
        """Resumes the stages that can run the epochs that they missed.

        Args:
            differs: True if the running stages differ from those in the log, which must record
                them.
        """
        self._resume_stopped(differs=differs)
        while True:
            planned = damage.plan_resumed_memory(self._publisher.snapshot, self._executor.types)
            if planned is None:
                return
            self._executor.install_stages(*planned)
            self._report.remembered(planned.stages, "its inputs have the epochs that it missed")
            self._resume_stopped(differs=True)

    def _resume_stopped(self, *, differs: bool) -> None:
        decision = definition_diff.resume_decision(self._publisher.snapshot, self._executor.types)
        if decision.extended or differs:
            result = self._executor.install(decision)
            work = [draft.work for draft in result.missed]
            self._report.resumed(decision.extended, decision.lost, work)

    def repair(
        self, missing: AbstractSet[str], without_rows: AbstractSet[str] = frozenset()
    ) -> bool:
        """Recomputes stages that were in memory only, lack files, or are refuted.

        Args:
            without_rows: stages that were defined after the epoch at which the log begins. They are
                computed together with the stages in memory, because either may read the other.

        Returns:
            True if all of them are complete now.
        """
        publisher = self._publisher
        doubtful = damage.awaits_recheck(publisher.snapshot.catalog)
        doubted = doubtful or bool(missing or publisher.store.clocks.wrong)
        absent = self._stages_without_rows(without_rows)
        if self._compute(absent, last=not doubted):
            return self._repair_missing(missing) if doubted else True
        if not doubted:
            return False
        remembered = self._compute_in_turns(missing, absent)
        complete = self._repair_missing(missing)
        if complete:  # stages computed in turns need a checkpoint even if no stage is left
            self._maintenance.plan_checkpoint()
        return complete and remembered

    def repair_file(self, name: str, *, stop: bool) -> bool:
        """Rebuilds the data of a damaged file found during a call.

        The caller holds no lock, and retries the call that found the file.

        Args:
            stop: True to stop stages that cannot be rebuilt; False to do nothing if there are any.

        Returns:
            True if nothing references the file any more.
        """
        with self._writer_lock.lock:
            self._writer_lock.begin_change("rebuilding lost rows")
            return self._repair_missing({name}, stop=stop)

    def _can_rebuild(self, missing: AbstractSet[str]) -> bool:
        """Returns True if the data of some files can probably be rebuilt without them."""
        planned = self._plan(missing)
        return not any(loss.outcome == STALE or not loss.rebuilds for loss in planned)

    def _compute_in_turns(self, missing: AbstractSet[str], absent: AbstractSet[str]) -> bool:
        """Computes stages without rows and stages with missing files, inputs before their readers.

        Failure: 1. A stage in memory reads a stage that lacks a file, which in turn reads a stage
        in memory. 2. Neither all stages in memory nor all damaged stages can be computed first.
        Hence they are computed in turns, as their inputs become complete.

        Returns:
            True if all stages without rows are computed now.
        """
        remaining, complete = set(absent), True
        while remaining:
            self._repair_missing(missing, self._readers(remaining))
            ready = remaining - self._readers(loss.name for loss in self._plan(missing))
            complete &= self._compute(ready or remaining, last=True)
            remaining -= ready or remaining
        return complete

    def _readers(self, names: Iterable[str]) -> set[str]:
        """Returns the readers of some stages, which must be computed after these."""
        graph = self._publisher.snapshot.graph
        return {reader for name in names for reader in graph.dependants(name)}

    def _plan(self, missing: AbstractSet[str]) -> list[BackfillPlan]:
        """Returns the planned repairs; changes nothing."""
        publisher = self._publisher
        lost = publisher.store.history.copied(()).remove_missing(missing)
        doubts = damage.refuted_stages(publisher.snapshot, publisher.store.clocks.wrong)
        return damage.plan_repairs(publisher.snapshot, lost, missing, doubts)

    def _repair_missing(
        self, missing: AbstractSet[str], apart: AbstractSet[str] = frozenset(), *, stop: bool = True
    ) -> bool:
        """Rebuilds the data of missing files. Returns True if no stage lacks a file now.

        A repair may read another damaged file: then it is planned again, without that file. In a
        log that another key has signed, damage is only reported.

        Args:
            apart: the stages to leave out; if there are any, no checkpoint follows.
            stop: see `repair_file`.
        """
        if self._publisher.store.foreign:
            return False
        damaged = {*missing}
        while True:
            if not (stop or self._can_rebuild(damaged)):
                return False
            try:
                return self._repair_all(damaged, apart, stop=stop)
            except CorruptLogError as error:
                if error.file is None or error.file in damaged:
                    raise
                damaged.add(error.file)

    def _repair_all(
        self, missing: AbstractSet[str], apart: AbstractSet[str], *, stop: bool
    ) -> bool:
        publisher = self._publisher
        wrong = publisher.store.clocks.wrong
        lost = publisher.store.history.remove_missing(missing)
        publisher.repacked()
        doubts = damage.refuted_stages(publisher.snapshot, wrong)
        self._record_refuted(doubts)
        planned = damage.plan_repairs(publisher.snapshot, lost, missing, doubts, apart)
        complete = True
        for loss in planned:
            complete &= self._repair(loss, missing, stop=stop)
        if planned and complete and not apart:
            self._maintenance.plan_checkpoint()
        return complete

    def _record_refuted(self, doubts: Mapping[int, RefutedState]) -> None:
        """Records the refuted stages in the catalog before the first of them is recomputed.

        Failure: 1. A stage is recomputed into another log. 2. After a crash no clock contradicts
        any more. 3. Its reader continues, although it was computed from the refuted rows.
        """
        snapshot = self._publisher.snapshot
        catalog = dict(snapshot.catalog)
        for name, node in snapshot.graph.named.items():
            refuted = doubts.get(node.log or 0)
            if refuted is not None and catalog[name].refuted is None:
                catalog[name] = replace(catalog[name], refuted=refuted)
        if catalog != snapshot.catalog:
            self._executor.install_stages(catalog)

    def _stages_without_rows(self, without_rows: AbstractSet[str]) -> set[str]:
        """Returns the live stages without rows: those in memory, and those in `without_rows`."""
        catalog = self._publisher.snapshot.catalog
        return {n for n, s in catalog.items() if s.live and (s.in_memory or n in without_rows)}

    def _compute(self, names: AbstractSet[str], *, last: bool) -> bool:
        """Computes stages that have no rows; returns True if it succeeded.

        If one of them is in memory, they are replayed over all epochs, provided that this is cheap.

        Args:
            last: True if no further attempt follows. If this one fails, the stages become stale.
        """
        snapshot = self._publisher.snapshot
        planned = damage.plan_without_rows(snapshot, names)
        if planned is None:
            return True
        try:
            result = self._executor.install_stages(*planned)
        except NosyncError as error:
            if last:
                self._stop_without_rows(planned.stages, str(error))
            return False
        for name, stage in planned.stages.items():
            begin = self._publisher.snapshot.catalog[name].begin
            what = (
                "in memory only" if stage.in_memory else f"not available at epoch {snapshot.epoch}"
            )
            self._report.came_back(
                name, RECOMPUTE, f"it was {what}, and is recomputed from epoch {begin} on"
            )
            self._report.regained(result.count(name))
        return True

    def _stop_without_rows(self, stages: Mapping[str, Stage], why: str) -> None:
        """Stops stages whose rows are all lost, and their readers."""
        snapshot = self._publisher.snapshot
        catalog = dict(snapshot.catalog)
        for name, stage in stages.items():
            catalog[name] = stage.forgotten(why, snapshot.epoch)
            self._report.came_back(name, STALE, why)
        for name in stages:
            self._stop_readers(catalog, name)
        self._executor.install_stages(catalog)

    def _stop_readers(self, catalog: dict[str, Stage], name: str, *, lost: bool = False) -> None:
        """Stops the readers of a collection in a catalog, and reports them."""
        snapshot = self._publisher.snapshot
        for stage in damage.stopped_readers(
            catalog, snapshot.graph, name, snapshot.epoch, lost=lost
        ):
            catalog[stage.name] = stage
            self._report.came_back(stage.name, STALE, stage.reason or "")

    def _repair(self, loss: BackfillPlan, missing: AbstractSet[str], *, stop: bool) -> bool:
        """Repairs one stage. Returns True if it is complete now.

        Raises:
            CorruptLogError: a file that the repair reads is damaged.
        """
        if loss.outcome != STALE and not loss.rebuilds:
            self._report_repair(loss)
            return False
        stage = self._publisher.snapshot.catalog[loss.name]
        if (loss.refused or loss.bare) and stage.reason is not None:
            # Because the repair of an input failed after this one was planned.
            loss = loss._replace(outcome=STALE, why=stage.reason)
        if loss.outcome != STALE:
            try:
                self._install_repair(loss)
            except NosyncError as error:
                if isinstance(error, CorruptLogError) and error.file not in (None, *missing):
                    raise
                if not stop:
                    return False
                why = str(error) if stage.refuted is None else f"{stage.refuted.why}; {error}"
                loss = loss._replace(outcome=STALE, why=why)
            else:
                self._report_repair(loss)
                return True
        self._stop_damaged(loss)
        self._report_repair(loss)
        return False

    def _install_repair(self, loss: BackfillPlan) -> None:
        stage = self._publisher.snapshot.catalog[loss.name]
        repaired = replace(stage, begin=loss.begin, refuted=None)
        result = self._executor.install_stages({loss.name: repaired}, loss)
        self._report.regained(result.count(loss.name))

    def _stop_damaged(self, loss: BackfillPlan) -> None:
        """Stops a stage that cannot be repaired, and its readers.

        Failure: 1. The rows of an input are lost; an input cannot be stopped. 2. A reader continues
        and looks up these rows, so no commit succeeds. Hence such readers stop, and wait while the
        input is held. Readers that only take its changes continue.
        """
        snapshot = self._publisher.snapshot
        catalog, stage = dict(snapshot.catalog), snapshot.catalog[loss.name]
        not_computed = stage.is_input or stage.frozen
        if not_computed:
            catalog[loss.name] = replace(stage, held=_reason_text(loss))
        elif stage.refuted is not None:
            catalog[loss.name] = stage.as_stale(_reason_text(loss), snapshot.epoch)
        elif stage.live:
            catalog[loss.name] = replace(
                stage.as_stale(_reason_text(loss), snapshot.epoch), held=_reason_text(loss)
            )
        else:
            return
        self._stop_readers(catalog, loss.name, lost=not_computed)
        if catalog != snapshot.catalog:
            self._executor.install_stages(catalog)

    def _report_repair(self, loss: BackfillPlan) -> None:
        stage = self._publisher.snapshot.catalog[loss.name]
        if stage.is_input or stage.frozen or loss.outcome == READ:
            kind = "input" if stage.is_input else "stage"
            rebuilt = f"{_missing_text(loss.files)}: its rows were rearranged from its log"
            text = rebuilt if loss.arranged else _reason_text(loss)
            self._report.note(f"{kind} '{loss.name}': {text}")
        else:
            outcome = RECOMPUTE if loss.outcome == REPLAY else loss.outcome
            self._report.came_back(loss.name, outcome, _reason_text(loss))


def _reason_text(loss: BackfillPlan) -> str:
    return ": ".join(filter(None, (_missing_text(loss.files) if loss.files else "", loss.why)))


def _missing_text(files: Iterable[str]) -> str:
    """Returns a message that files are missing."""
    names = sorted(files)
    shown = ", ".join(f"'{name}'" for name in names[:FILES_MAX])
    rest = len(names) - FILES_MAX
    more = f" and {rest} more" if rest > 0 else ""
    return f"{shown}{more} {'is' if len(names) == 1 else 'are'} missing"


# -- damaged files that a call finds ------------------------------------------------------------

Result = TypeVar("Result")

_REPAIRS_MAX = 256
"""The most files that are repaired for one call."""


class RepairService:
    """Verifies a log, and refetches or rebuilds its damaged files.

    Its `_lock` serialises repairs: if two threads miss a file, it is fetched once.

    Args:
        stage_recovery: rebuilds the data of a file that no replica has.
    """

    def __init__(
        self,
        publisher: Publisher,
        replication: ReplicationService,
        subscriptions: Subscriptions,
        stage_recovery: StageRecovery,
    ) -> None:
        self._publisher, self._store = publisher, publisher.store
        self._replication = replication
        self._say = subscriptions.add_notice
        self._stage_recovery = stage_recovery
        self._lock = threading.Lock()

    def verify(self) -> VerificationReport:
        """Returns the damage in the log; see `Session.verify`."""
        store = self._publisher.store
        replicas = None if store.log.mode == "r" else self._replication.settings.replicas
        with self._publisher.metrics.activities.record("verifying the log"):
            return verified_local_files(
                store.path, replicas, files=store.files, pause=YieldingPause()
            )

    def repairing(self, call: Callable[[], Result]) -> Result:
        """Runs a call that changes nothing if it fails, and retries it after a repair."""
        try:
            return call()
        except CorruptLogError as error:
            return self.again(error, call)

    def again(self, error: CorruptLogError, call: Callable[[], Result]) -> Result:
        """Repairs the file of an error and retries the call; raises the error if that fails.

        Cost: reads the frames of the log, to find the entry of the file.
        """
        tried: set[str] = set()
        while error.file is not None and error.file not in tried and len(tried) < _REPAIRS_MAX:
            tried.add(error.file)
            if not (self._refetch(error.file) or self._rebuild_data(error.file)):
                break
            try:
                return call()
            except CorruptLogError as another:
                error = another
        raise error

    def _rebuild_data(self, name: str) -> bool:
        """Rebuilds the data of a file; returns True if nothing references the file any more."""
        if self._store.log.mode == "r":
            return False
        try:
            done = self._stage_recovery.repair_file(name, stop=self._all_replicas_answer())
        except StageError:  # inside an epoch, which must fail with its own error
            return False
        if done:
            self._say(f"'{name}' is damaged or missing: its data was rebuilt")
        return done

    def _all_replicas_answer(self) -> bool:
        """Returns True if every replica lists its files of the log now."""
        files, log_id = self._store.files, self._store.log.id
        for address in self._replication.settings.replicas:
            try:
                if not call_remote(address.url, partial(_holds_files, files, address, log_id)):
                    return False
            except NosyncError:
                return False
        return True

    def _refetch(self, name: str) -> bool:
        """Repairs a file from the replicas; returns True if it is intact afterwards."""
        settings = self._replication.settings
        if not settings.replicas or self._store.log.mode == "r":
            return False
        with self._lock:
            try:
                done = repaired_files(self._store, settings, [name])
            except NosyncError:
                return False
        for each in done.get(name, ()):
            self._say(str(each))
        return name in done


def _holds_files(files: Files, address: ReplicaAddress, log_id: bytes, _beat: Beat) -> bool:
    """Returns True if a replica holds files of a log; an empty mount point does not."""
    with open_copy(address, files, log_id) as replica:
        return bool(replica.held().files)


def repaired_files(
    store: Store, settings: ReplicaConfig, names: Iterable[str]
) -> dict[str, list[RepairedFile]]:
    """Repairs files of rows; returns the intact ones, with the repairs made for each.

    Raises:
        DurabilityError: the log or its disk cannot be read, or written.
        FencedError: another process owns the log.
    """
    intact: dict[str, list[RepairedFile]] = {}
    remaining, count = [*names], -1
    while (
        remaining and len(intact) > count
    ):  # because a repaired file may be a pack, which names others
        count = len(intact)
        files = _immutable_files(store)
        for name in remaining:
            if name in files:
                _repair_one(store, settings, files[name], intact)
        remaining = [name for name in remaining if name not in intact]
    return intact


def _repair_one(
    store: Store,
    settings: ReplicaConfig,
    item: ImmutableFile,
    intact: dict[str, list[RepairedFile]],
) -> None:
    """Repairs one file if it is damaged, and records it in `intact`."""
    why = repair.damage_reason(store.files, store.path, item, _ignore_count)
    if not why:
        intact[item.name] = []
        return
    repaired = repair.repair_file(
        store.files,
        store.path,
        item,
        why,
        settings.replicas,
        store.log.id,
        check=store.log.check,
    )
    if repaired is not None:
        intact[item.name] = [repaired]


def _immutable_files(store: Store) -> dict[str, ImmutableFile]:
    """Returns the log's entries of its files, including files that only packs name."""
    surveyed = survey_log(store.files, store.path, HostIdentity(), _ignore_count)
    return immutable_files(completed_report(store.files, store.path, surveyed, _ignore_count))


def _ignore_count(_count: int) -> None:
    pass


# -- the command: python -m nosync_nb.verify PATH ------------------------------------------------

USAGE = """\
usage: python -m nosync_nb.verify PATH

Reads every byte of the log in the folder PATH, which may be open elsewhere, and lists the damage.
Exits with 0 if all is intact, with 1 if something is damaged, and with 2 if it cannot verify.
"""
WHOLE, DAMAGED, UNKNOWN = 0, 1, 2


def main(arguments: Sequence[str]) -> int:
    """Verifies the log that the arguments name; returns the exit code of the process.

    No lock is taken: the command verifies the folder as another process reads it. It exits with 0
    if all is intact, and with 1 if something is damaged (each file is listed, with the stage and
    the epochs whose rows it contains). It exits with 2 if it cannot verify: there is no log, or it
    has another format.
    """
    if arguments and arguments[0] in ("-h", "--help"):
        sys.stdout.write(USAGE)
        return WHOLE
    if len(arguments) != 1 or arguments[0].startswith("-"):
        sys.stderr.write(USAGE)
        return UNKNOWN
    try:
        log = verified_local_files(arguments[0])
    except NosyncError as error:
        sys.stderr.write(one_line(str(error)) + "\n")
        return UNKNOWN
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return UNKNOWN
    sys.stdout.write(f"{log}\n")
    return WHOLE if log.whole else DAMAGED
