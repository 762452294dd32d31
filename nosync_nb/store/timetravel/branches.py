"""Creates, lists and drops branches: logs that begin with the contents of another log at an epoch.

    folder/branches/NAME/      a log like any other, complete in itself
    folder/branches/.making-*  a branch under construction; .dropped-*: one that is being deleted
    folder/branches/.left-*    a branch of the epochs that a rewind undoes, until the rewind is done
    folder/branches/.in-use    the branch in which a notebook of this log continues

A branch is written under a temporary name, synced as a whole (`files/group_sync.py`), and renamed.
So it exists as a whole or not at all. Its files (layers, packs) are hard links, and no byte is
copied. A file exists as long as one of the two logs needs it, and neither log must know which files
the other one deletes. A branch begins with a checkpoint that records its parent and the epoch at
which it forked.

The list of branches is read from the logs themselves, which are opened for reading. So there is no
second record that could disagree. A damaged branch is listed with the others, as damaged.

Owns: nothing. The caller that creates or drops a branch holds the lease of the parent log.

Failure: 1. A process dies while it creates a branch. 2. The files retain bytes of the parent that
no log needs. Therefore unfinished and half-deleted branches are removed before the next one is
created or dropped.

`move_log` renames the folder of a log with its branches. A rename is atomic, and everything else
refers to the log by its id: its replicas, and its branches, which are inside the folder. References
to the folder elsewhere are updated by the caller.

Failure: 1. A process opens the log, or one of its branches, by the old path. 2. The folder is
renamed. 3. The process writes to a path where no log is. Hence the opening locks of the log and of
all its branches are taken first, and nothing is renamed if one is locked or has a live owner. An
opening that waits for such a lock finds no log at its path afterwards, and fails.

Failure: 1. A session reads the log. 2. The folder is renamed. 3. The session finds no files. Hence
a reader searches for the folder under its new name, by its `generation` file (`current_folder`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from typing import Any, NamedTuple
from uuid import uuid4

from nosync_nb.dataflow.graph import Graph
from nosync_nb.dataflow.runtime.epoch_result import VersionState
from nosync_nb.errors import CorruptLogError, DurabilityError, FencedError, SchemaError, TrustError
from nosync_nb.files.filesystem import Files
from nosync_nb.files.group_sync import GroupSyncFiles
from nosync_nb.files.safe_names import FOLDERS
from nosync_nb.store.log import fencing, folder, owner
from nosync_nb.store.log.owner import HostIdentity, LogLocation, LogOwner
from nosync_nb.store.records import payloads
from nosync_nb.store.replication import config
from nosync_nb.store.replication.config import ReplicaConfig
from nosync_nb.store.replication.file_layout import BRANCHES
from nosync_nb.store.safe_decoding import guarded_decoding
from nosync_nb.store.store import Store
from nosync_nb.trace.history.history import History

FOLDER = BRANCHES
BACKUP_PREFIX = "before-rewind-"
"""The names of branches with the epochs that a rewind has undone begin with this."""
MAKING, DROPPED, LEFT = ".making-", ".dropped-", ".left-"
IN_USE = ".in-use"

_NAME_BYTES_MAX = 1 << 12

NAME_BYTES_MAX = 255 - len(DROPPED)
"""The maximum bytes of a branch name: when a branch is dropped, its folder gets a longer name."""


class BranchOrigin(NamedTuple):
    """The parent of a branch.

    Attributes:
        of: the id of the parent log.
        name: the name of the branch there.
        at: the epoch of the fork.
    """

    of: str
    name: str
    at: int


class BranchStart(NamedTuple):
    """The initial contents of a branch.

    Attributes:
        version: the traces at the epoch of the fork.
        history: the history up to that epoch, in a copy that only this branch uses.
        unwritten: the numbers of the logs that are not written.
        meta: returns the other entries of the checkpoint for the id of the new log.
        times: when each epoch was committed; see `EpochIndex.saved`.
        replicas: the replicas of the branch, from its first opening on.
    """

    version: VersionState
    graph: Graph
    history: History
    unwritten: frozenset[int]
    meta: Callable[[bytes], Mapping[str, Any]]
    times: bytes
    replicas: ReplicaConfig = ReplicaConfig()


def branch_origin(meta: Mapping[str, Any]) -> BranchOrigin | None:
    """Returns the origin of a branch from its checkpoint; None if the log is not a branch.

    Raises:
        CorruptLogError: the origin is malformed.
    """
    recorded = meta.get("branch")
    if recorded is None:
        return None
    with guarded_decoding("the checkpoint"):
        fork = BranchOrigin(*recorded)
        if not isinstance(fork.of, str) or not isinstance(fork.name, str) or fork.at < 0:
            raise ValueError("it names no branch")
        return fork


def branch_folder(log: str, name: str) -> str:
    """Returns the folder of a branch; `A/B` is branch B of branch A.

    Args:
        log: the folder of the parent log.
    """
    for part in name.split("/"):
        log = os.path.join(log, FOLDER, part)
    return log


def branch_names(files: Files, log: str) -> list[str]:
    """Returns the names of the branches of the log in a folder."""
    where = os.path.join(log, FOLDER)
    if not files.exists(where):
        return []
    folder.path_inside(files, where, write=False)
    return [name for name in files.names(where) if not name.startswith(".")]


def create_branch(parent: Store, name: str, beginning: BranchStart) -> str:
    """Creates a branch as a whole, or not at all.

    Args:
        parent: the parent log, which must not be written meanwhile.

    Returns:
        the folder of the branch.

    Raises:
        SchemaError: the name exists already, or is too long for a folder.
        DurabilityError: the disk reports an error, or has no hard links.

    Cost: a hard link for each file, and a checkpoint of the rows in memory.
    """
    files = parent.files
    size_bytes = len(os.fsencode(name))
    if size_bytes > NAME_BYTES_MAX:
        raise SchemaError(
            f"branch '{name:.40}...': a name of {size_bytes} bytes is too long for a folder",
            hint=f"use a name of at most {NAME_BYTES_MAX} bytes",
        )
    target = branch_folder(parent.path, name)
    if files.exists(target):
        raise branch_exists_error(name, target)
    sweep_leftovers(parent)
    fork = BranchOrigin(parent.log.id.hex(), name, beginning.version.epoch)
    _write_and_rename(parent, _building_folder(parent), target, beginning, files.link, fork)
    return target


def prepare_backup_branch(
    parent: Store, name: str, incarnation: int, beginning: BranchStart
) -> None:
    """Prepares a branch of the epochs that a rewind undoes.

    It is hidden until `finish_backup_branches` shows it, after the rewind.

    Args:
        incarnation: the incarnation that begins with the rewind.
    """
    hidden = f"{LEFT}{incarnation}-{name}"
    temporary = _building_folder(parent)
    fork = BranchOrigin(parent.log.id.hex(), name, beginning.version.epoch)
    parent.files.make_folder(os.path.join(parent.path, FOLDER))
    with _owner_locked(parent):
        parent.files.remove_folder(temporary)
    _write_and_rename(
        parent, temporary, branch_folder(parent.path, hidden), beginning, parent.files.link, fork
    )


def _building_folder(parent: Store) -> str:
    """Returns the folder in which a branch is built; it differs between owners of a log."""
    return os.path.join(parent.path, FOLDER, f"{MAKING}{parent.log.generation}")


def finish_backup_branches(parent: Store, incarnation: int) -> None:
    """Shows the backup branches of rewinds, and deletes those of rewinds that did not happen.

    It also removes branches that a dead process left unfinished or half deleted. It is idempotent:
    the next rewind or opening does what an earlier one has not done.

    Failure: 1. A backup branch is shown. 2. The power fails before the frame of its rewind is on
    disk. 3. The log is recovered as it was before the rewind, beside a branch of itself. Therefore
    that frame is synced first.

    Args:
        incarnation: the current incarnation of the log.

    Raises:
        DurabilityError: the disk reports an error; no branch is shown whose rewind may be lost.
    """
    files, where = parent.files, os.path.join(parent.path, FOLDER)
    folders = files.names(where) if files.exists(where) else []
    _remove_unfinished(parent, folders)
    hidden = [name for name in folders if name.startswith(LEFT)]
    if not hidden:
        return
    parent.log.sync()
    with _owner_locked(parent):
        for name in hidden:
            number, _, branch_name = name.removeprefix(LEFT).partition("-")
            if number.isdecimal() and int(number) <= incarnation and branch_name not in folders:
                files.rename(os.path.join(where, name), os.path.join(where, branch_name))
            else:
                files.remove_folder(os.path.join(where, name))
    files.sync_folder(where)


def copy(source: Store, target: str, beginning: BranchStart) -> None:
    """Creates an independent log in another folder, or nothing; see `session/copy_log.py`.

    Args:
        target: a folder that does not exist yet, on any file system.
    """
    parent, name = os.path.split(target)

    def brought(old: str, new: str) -> None:
        try:
            source.files.link(old, new)
        except DurabilityError:  # the two folders do not support hard links
            source.files.copy(old, new)

    temporary = os.path.join(parent, f".{name}{MAKING}{uuid4().hex}")
    _write_and_rename(source, temporary, target, beginning, brought, None)


def _write_and_rename(
    source: Store,
    temporary: str,
    target: str,
    beginning: BranchStart,
    bring: Callable[[str, str], None],
    fork: BranchOrigin | None,
) -> None:
    """Writes a log into a temporary folder, and renames that; on failure nothing remains."""
    files, current_path = source.files, temporary
    try:
        with closing(GroupSyncFiles(files)) as disk:
            _write(source, disk, temporary, beginning, bring, fork)
            disk.sync_deferred(apart=os.path.dirname(target))
        with nullcontext() if fork is None else _owner_locked(source):
            files.rename(temporary, target)  # fails if another process has created that branch
        current_path = target
        files.sync_folder(os.path.dirname(target))
    except Exception:
        files.remove_folder(current_path)
        raise


def branch_exists_error(name: str, path: str) -> SchemaError:
    """Returns the error for a name that is already in use for a branch."""
    return SchemaError(
        f"branch '{name}' exists already",
        hint=f"use another name, open it with nosync.open('{path}'), or drop it:"
        f" session.drop_branch('{name}')",
    )


def unknown_branch_error(name: str, known: Iterable[str]) -> SchemaError:
    """Returns the error for a branch that does not exist."""
    return SchemaError(
        f"there is no branch '{name}'", hint=f"branches: {', '.join(known) or 'none'}"
    )


def _write(
    parent: Store,
    disk: Files,
    folder_path: str,
    beginning: BranchStart,
    bring: Callable[[str, str], None],
    fork: BranchOrigin | None,
) -> None:
    """Writes a complete branch or copy into a new folder.

    Args:
        disk: the disk to write to; the caller runs its deferred syncs.
        bring: links or copies a file of the parent into the new folder.
        fork: the origin to record; `None` for a copy.
    """
    files, past, epoch = parent.files, beginning.history, beginning.version.epoch
    needed = past.files() | {
        ref.path
        for trace in beginning.version.traces.values()
        for layer in trace.layers
        for ref in layer.files
    }
    store = Store.open(folder_path, files=disk)
    try:
        for file in sorted(needed):
            inner = FOLDERS[os.path.splitext(file)[1]]
            source = os.path.join(parent.path, inner, file)
            if not files.exists(source):  # the file may have to be fetched
                files.open(source).close()
            bring(source, os.path.join(folder_path, inner, file))
        for inner in {FOLDERS[os.path.splitext(file)[1]] for file in needed}:
            disk.sync_folder(os.path.join(folder_path, inner))
        store.history.become(past)
        plan = store.history.pack(epoch, beginning.unwritten)
        if plan is not None:
            store.history.adopt(plan.perform(lambda: None))
        origin = {} if fork is None else {"branch": fork}
        meta = {**beginning.meta(store.log.id), **origin}
        payload = store.checkpoint_payload(
            beginning.version, beginning.graph, meta, beginning.times, store.history.manifest()
        )
        store.log.write_checkpoint(payload)
        store.log.note(epoch)
        if beginning.replicas.replicas:
            config.write_config(disk, folder_path, store.log.id, beginning.replicas)
    finally:
        store.close()


def drop_branch(parent: Store, name: str) -> int:
    """Deletes a branch; it is renamed first, and does not exist any more from then on.

    Returns:
        the generation of its last owner, plus one.

    Raises:
        SchemaError: the branch does not exist, or has branches itself.
        FencedError: another process has the branch open.
    """
    files, path = parent.files, branch_folder(parent.path, name)
    names = branch_names(files, parent.path)
    if name not in names:
        raise unknown_branch_error(name, names)
    below = branch_names(files, path)
    if below:
        raise SchemaError(
            f"branch '{name}' has branches of its own: {', '.join(below)}",
            hint=f"drop those first: nosync.open('{path}').drop_branch('{below[0]}')",
        )
    sweep_leftovers(parent)
    dropped_path = os.path.join(parent.path, FOLDER, DROPPED + name)
    lock = fencing.opening_lock(files, path)
    try:
        claimed = _claim_lease(files, path, name)
        claimed.close()
        with _owner_locked(parent):
            files.rename(path, dropped_path)
    finally:
        lock.release()
    files.sync_folder(os.path.dirname(path))
    files.remove_folder(dropped_path)
    return claimed.number


def _claim_lease(files: Files, path: str, name: str) -> fencing.WriterLease:
    """Returns the lease of a branch that is to be dropped; the caller holds its opening lock."""
    try:
        return fencing.claim_lease(files, path, HostIdentity(), takeover=False, generation_min=0)
    except FencedError as error:
        raise FencedError(
            f"branch '{name}' is open: {error}",
            hint="close it where it is open (`session.close()`, `%dd switch`), then drop it",
        ) from error


def sweep_leftovers(parent: Store) -> None:
    """Deletes branches that a dead process left unfinished or half deleted."""
    where = os.path.join(parent.path, FOLDER)
    folder.path_inside(parent.files, where, write=True)
    _remove_unfinished(parent, parent.files.names(where))


def _remove_unfinished(parent: Store, names: Iterable[str]) -> None:
    """Deletes the branch folders among `names` that are unfinished or half deleted."""
    unfinished = [name for name in names if name.startswith((MAKING, DROPPED))]
    if unfinished:
        with _owner_locked(parent):
            for name in unfinished:
                parent.files.remove_folder(os.path.join(parent.path, FOLDER, name))


@contextmanager
def _owner_locked(parent: Store) -> Iterator[None]:
    """Protects a block that changes the branches of a log from a takeover of the log.

    Failure: 1. The owner has checked its generation, and is suspended. 2. Another process takes the
    log over and creates a branch. 3. The first one resumes, and deletes it. Therefore the
    generation is checked while holding the lock that a takeover needs.

    Raises:
        FencedError: another process owns the log, or this is a forked child.
    """
    parent.log.check()
    lock = fencing.opening_lock(parent.files, parent.path)
    try:
        parent.log.check()
        yield
    finally:
        lock.release()


def notebook_branch(files: Files, log: str) -> str | None:
    """Returns the branch in which a notebook of a log continues; None for the log itself."""
    path = os.path.join(log, FOLDER, IN_USE)
    if not branch_names(files, log) or not files.exists(path):
        return None
    name = files.read(path, most=_NAME_BYTES_MAX).decode(errors="replace")
    return name if _branch_exists(files, log, name) else None


def set_notebook_branch(files: Files, log: str, name: str | None) -> None:
    """Records durably in which branch a notebook continues; `None` means the log itself.

    Args:
        name: the branch; `A/B` is branch B of branch A.

    Raises:
        SchemaError: the branch does not exist.
    """
    if name is not None and not _branch_exists(files, log, name):
        raise unknown_branch_error(name, all_branches(files, log))
    if branch_names(files, log):
        files.replace(os.path.join(log, FOLDER, IN_USE), (name or "").encode())


def all_branches(files: Files, log: str) -> list[str]:
    """Returns the branches of the log in a folder and, as `A/B`, their branches."""
    known = []
    for name in branch_names(files, log):
        known += [
            name,
            *(f"{name}/{each}" for each in all_branches(files, branch_folder(log, name))),
        ]
    return known


def _branch_exists(files: Files, log: str, name: str) -> bool:
    """Returns True if a branch, or a branch of a branch, exists."""
    for part in name.split("/"):
        if part not in branch_names(files, log):
            return False
        log = branch_folder(log, part)
    return True


class BranchInfo(NamedTuple):
    """A branch in a listing.

    Attributes:
        path: its folder, which can be opened.
        at: the epoch at which it forked.
        now: its last epoch.
        owner: the process that has it open for writing, if any.
        damaged: the reason why its log cannot be read; then neither epoch is known.
        replicas: the URLs of its copies, if the branch is only on replicas and not on this disk.
            Then neither epoch is known, and `nosync.open(path, replicas=replicas)` restores it.
    """

    name: str
    path: str
    at: int
    now: int
    owner: str | None
    damaged: str = ""
    replicas: tuple[str, ...] = ()


def list_branches(files: Files, log: str) -> dict[str, BranchInfo]:
    """Returns the branches of the log in a folder, by name.

    Cost: each branch is opened for reading.
    """
    branches = {}
    for name in branch_names(files, log):
        path = branch_folder(log, name)
        try:
            branches[name] = _branch_info(path, name)
        except (CorruptLogError, DurabilityError, TrustError) as error:
            branches[name] = BranchInfo(name, path, 0, 0, None, str(error))
    return branches


def _branch_info(path: str, name: str) -> BranchInfo:
    store = Store.open(path, mode="r")
    try:
        fork = branch_origin(store.meta)
        if fork is None:
            raise CorruptLogError(
                f"'{path}' is not a branch: its log does not record where it forked",
                hint="move the folder elsewhere and open it there",
            )
        kinds = payloads.EPOCH, payloads.REWIND
        epochs = [
            store.epoch,
            *(record.payload.epoch for record in store.tail if record.kind in kinds),
        ]
        owner = store.log.owner
        return BranchInfo(name, path, fork.at, epochs[-1], open_by(owner))
    finally:
        store.close()


def open_by(owner: LogOwner | None) -> str | None:
    """Returns the process that has a log open for writing; None if no such process is known.

    An owner on another host or in another container counts as alive until it has released the log.
    """
    if owner is None or owner.released or HostIdentity().alive(owner.identity) is False:
        return None
    return str(owner)


def check_branch_exists(files: Files, path: str) -> None:
    """Raises SchemaError if a path denotes a branch that does not exist.

    Opening must not create a branch. Otherwise the opening of a branch of a dropped branch would
    create an empty log in its place.
    """
    while os.path.basename(inner := os.path.dirname(path)) == FOLDER:
        log, name = os.path.dirname(inner), os.path.basename(path)
        if not files.exists(path) and files.exists(os.path.join(log, "generation")):
            raise unknown_branch_error(name, branch_names(files, log))
        path = log


def move_log(
    files: Files, log: str, target: str, prepare: Callable[[Sequence[tuple[str, str]]], None]
) -> bool:
    """Renames the folder of a log, with its branches. Returns False if nothing was renamed.

    Nothing is renamed if the log or one of its branches is open, if something is at `target`, or if
    the disk reports an error. An empty folder at `target` is replaced.

    Args:
        target: a path in the same folder as `log`.
        prepare: called before the rename, while nothing can be opened, with the old and the new
            path of the log and of each branch.
    """
    with ExitStack() as locks, suppress(DurabilityError, CorruptLogError, TrustError):
        paths = [log, *(branch_folder(log, name) for name in all_branches(files, log))]
        for path in paths:
            lock = files.lock(os.path.join(path, "lock"))
            if lock is None:
                return False
            locks.callback(lock.release)
            if open_by(owner.read_owner(files, path)) is not None:
                return False
        prepare([(path, target + path.removeprefix(log)) for path in paths])
        files.rename(log, target)
        with suppress(DurabilityError):  # after a power loss either name is valid
            files.sync_folder(os.path.dirname(target))
        return True
    return False


def current_folder(files: Files, known: LogLocation) -> str:
    """Returns the current folder of a log with a known location, even if it was renamed."""
    folder, old = os.path.split(known.path)
    with suppress(DurabilityError):
        for name in (old, *files.names(folder)):
            path = os.path.join(folder, name)
            with suppress(DurabilityError):
                if owner.log_location(files, path)[1:] == known[1:]:
                    return path
    return known.path
