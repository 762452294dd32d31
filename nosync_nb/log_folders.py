"""Folders of logs that are not open: their branches, owner, replicas and disk usage.

    from nosync_nb.log_folders import LogFolder

    folder = LogFolder("flights.nosync")
    folder.owner                       # the process that has the log open, or None
    folder.branches                    # ['idea', 'idea/deeper']
    folder.branch("idea").path         # 'flights.nosync/branches/idea'

A front end uses this module to find the log of a notebook before it opens one. `Files` is the
engine's own access to the disk, and raises errors of `nosync_nb.errors`. The functions for the
user's key are here too, because the key belongs to the user and not to a session.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime

from nosync_nb.collections.functions.signing import existing_user_key, key_path
from nosync_nb.errors import DurabilityError, NosyncError
from nosync_nb.files.filesystem import Files
from nosync_nb.session.opening import open as open_log
from nosync_nb.session.timetravel.branch import remote_branch_list
from nosync_nb.store.catalog.signature import export_user_key, import_user_key
from nosync_nb.store.log import folder as log_folder
from nosync_nb.store.log.owner import read_owner
from nosync_nb.store.replication import config
from nosync_nb.store.timetravel import branches
from nosync_nb.store.timetravel.branches import FOLDER as BRANCHES
from nosync_nb.store.timetravel.branches import BranchInfo, open_by

__all__ = [
    "BRANCHES",
    "Files",
    "LogFolder",
    "admit_folder",
    "existing_user_key",
    "export_user_key",
    "import_user_key",
    "key_path",
    "lost_logs",
]

_DEPTH_MAX = 64
"""The maximum depth of folders whose files are counted; branches contain further branches."""


class LogFolder:
    """The folder of a log, which may be missing; nothing is opened.

    Attributes:
        path: the folder.

    Examples:
        >>> from nosync_nb.log_folders import LogFolder
        >>> LogFolder("flights.nosync").branches
        []
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._files = Files()

    @property
    def _registered_path(self) -> str:
        """The path under which the user's registry of replicas lists the log."""
        return os.path.realpath(self.path)

    # -- the folder --------------------------------------------------------------------------

    def has_log(self, *, write: bool) -> bool:
        """Returns True if the folder has a log, or the beginning of one.

        Args:
            write: True if the caller is going to write to the folder.

        Raises:
            TrustError: the folder is a link, belongs to another user, or others can write it.

        Examples:
            >>> from nosync_nb.log_folders import LogFolder
            >>> LogFolder("flights.nosync").has_log(write=False)
            True
        """
        return log_folder.holds_log(self._files, self.path, write=write)

    @property
    def owner(self) -> str | None:
        """The process that has the log, or one of its branches, open for writing; None: none.

        Examples:
            >>> from nosync_nb.log_folders import LogFolder
            >>> session.close()
            >>> LogFolder("flights.nosync").owner is None
            True
        """
        with suppress(NosyncError):
            for path in (self.path, *(self.branch(name).path for name in self.local_branches)):
                if (process := open_by(read_owner(self._files, path))) is not None:
                    return process
        return None

    def disk_usage(self) -> tuple[int, datetime | None]:
        """Returns the bytes of the log, each file once, and the time of the last write.

        Examples:
            >>> from nosync_nb.log_folders import LogFolder
            >>> size, written = LogFolder("flights.nosync").disk_usage()
            >>> size > 0
            True
        """
        sizes, last = {}, 0.0
        for status in self._files_below(self.path, 0):
            sizes[status.st_dev, status.st_ino] = status.st_size
            last = max(last, status.st_mtime)
        return sum(sizes.values()), datetime.fromtimestamp(last, UTC) if last else None

    def _files_below(self, folder: str, depth: int) -> Iterator[os.stat_result]:
        """Yields every file below a folder; skips files that are deleted meanwhile."""
        try:
            names = self._files.names(folder)
        except DurabilityError:
            return
        for name in names:
            path = os.path.join(folder, name)
            try:
                status = self._files.status(path)
            except DurabilityError:
                continue
            if not stat.S_ISDIR(status.st_mode):
                yield status
            elif depth < _DEPTH_MAX:
                yield from self._files_below(path, depth + 1)

    def move(
        self,
        target: str | os.PathLike[str],
        prepare: Callable[[Sequence[tuple[str, str]]], None],
    ) -> bool:
        """Renames the folder, with its branches; returns False if that is not possible now.

        Nothing is renamed while a process has the log or a branch open, or if `target` exists.

        Args:
            prepare: called before the rename with the old and the new path of the log and of each
                branch.

        Examples:
            >>> from nosync_nb.log_folders import LogFolder
            >>> session.close()
            >>> LogFolder("flights.nosync").move("moved.nosync", lambda paths: None)
            True
        """
        return branches.move_log(self._files, self.path, os.fspath(target), prepare)

    # -- branches ----------------------------------------------------------------------------

    @property
    def local_branches(self) -> list[str]:
        """The branches on this disk; `A/B` is branch B of branch A.

        Examples:
            >>> from nosync_nb.log_folders import LogFolder
            >>> idea = session.branch("idea")
            >>> LogFolder("flights.nosync").local_branches
            ['idea']
        """
        return branches.all_branches(self._files, self.path)

    @property
    def branches(self) -> list[str]:
        """The branches, also those that are only at replicas: `LogFolder(path).branches`.

        Examples:
            >>> from nosync_nb.log_folders import LogFolder
            >>> idea = session.branch("idea")
            >>> LogFolder("flights.nosync").branches
            ['idea']
        """
        return [*self._branches_below(self._registered_path)]

    def _branches_below(self, log: str) -> Iterator[str]:
        for name in branches.branch_names(self._files, log):
            yield name
            below = self._branches_below(branches.branch_folder(log, name))
            yield from (f"{name}/{each}" for each in below)
        yield from config.logs_below(self._files, log)

    def list_branches(self) -> dict[str, BranchInfo]:
        """Returns the direct branches by name, also those that are only at replicas.

        Cost: opens each branch for reading.

        Examples:
            >>> from nosync_nb.log_folders import LogFolder
            >>> idea = session.branch("idea")
            >>> LogFolder("flights.nosync").list_branches()["idea"].at
            1
        """
        remote = remote_branch_list(self._files, self.path)
        return {**remote, **branches.list_branches(self._files, self.path)}

    def branch(self, name: str) -> LogFolder:
        """Returns the folder of a branch, which may be missing: `LogFolder(path).branch("A/B")`.

        Examples:
            >>> from nosync_nb.log_folders import LogFolder
            >>> LogFolder("flights.nosync").branch("idea").path
            'flights.nosync/branches/idea'
        """
        return LogFolder(branches.branch_folder(self.path, name))

    def existing_branch(self, name: str) -> LogFolder:
        """Returns the folder of a branch on this disk.

        Raises:
            SchemaError: there is no such branch; the hint lists the branches.

        Examples:
            >>> from nosync_nb.log_folders import LogFolder
            >>> idea = session.branch("idea")
            >>> LogFolder("flights.nosync").existing_branch("idea").path
            'flights.nosync/branches/idea'
        """
        names = self.local_branches
        if name not in names:
            raise branches.unknown_branch_error(name, names)
        return self.branch(name)

    def restore_branch(self, name: str) -> None:
        """Restores a branch that is only at its replicas, and the branches above it.

        Examples:
            >>> LogFolder("flights.nosync").restore_branch("idea")
        """
        log = self._registered_path
        for part in name.split("/"):
            replicas = config.logs_below(self._files, log).get(part)
            log = branches.branch_folder(log, part)
            if replicas is not None:
                open_log(log, replicas=replicas[0], quorum=replicas[1]).close()

    @property
    def notebook_branch(self) -> str | None:
        """The branch that the notebook of the log uses; None: the log itself.

        Examples:
            >>> from nosync_nb.log_folders import LogFolder
            >>> LogFolder("flights.nosync").notebook_branch is None
            True
        """
        return branches.notebook_branch(self._files, self.path)

    def set_notebook_branch(self, name: str | None) -> None:
        """Records the branch that the notebook of the log uses; None: the log itself.

        Raises:
            SchemaError: there is no such branch.

        Examples:
            >>> from nosync_nb.log_folders import LogFolder
            >>> idea = session.branch("idea")
            >>> LogFolder("flights.nosync").set_notebook_branch("idea")
            >>> LogFolder("flights.nosync").notebook_branch
            'idea'
        """
        branches.set_notebook_branch(self._files, self.path, name)

    # -- replicas ----------------------------------------------------------------------------

    @property
    def replicas(self) -> tuple[list[str], int] | None:
        """The URLs and the quorum of the log's replicas by the user's registry; None: none.

        Examples:
            >>> from nosync_nb.log_folders import LogFolder
            >>> LogFolder("flights.nosync").replicas is None
            True
        """
        return config.registered_replicas(self._files, self._registered_path)

    def forget_replicas(self) -> None:
        """Removes the log's replicas from the user's registry; the copies stay where they are.

        Examples:
            >>> from nosync_nb.log_folders import LogFolder
            >>> session.close()
            >>> LogFolder("flights.nosync").forget_replicas()
        """
        config.unregister_replicas(self._files, self._registered_path)

    def record_move(self, old: str | os.PathLike[str]) -> None:
        """Records in the user's registry that the folder `old` was renamed to this one.

        Examples:
            >>> LogFolder("new.nosync").record_move("old.nosync")
        """
        config.record_move(self._files, os.fspath(old), self.path)


def lost_logs(parent: str | os.PathLike[str]) -> list[str]:
    """Returns the folders in `parent` of replicated logs that do not exist any more.

    Examples:
        >>> from nosync_nb.log_folders import lost_logs
        >>> lost_logs(".")
        []
    """
    return config.is_log_gone(Files(), os.fspath(parent))


def admit_folder(folder: str | os.PathLike[str], *, write: bool) -> None:
    """Refuses a folder that another user may have prepared; makes a missing one if `write`.

    Raises:
        TrustError: the folder is a link, belongs to another user, or others can write it.
        DurabilityError: the folder cannot be created.

    Examples:
        >>> admit_folder(".nosync", write=True)
    """
    log_folder.path_inside(Files(), os.fspath(folder), write=write)
