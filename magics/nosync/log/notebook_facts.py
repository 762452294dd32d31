"""Collects the facts that identify a notebook, and reads and writes the records of logs.

Which log belongs to a notebook is decided in `resolution`. Unreadable facts count as unknown. The
record of a log is only a hint, because opening the log checks its owner.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nosync.log.location import RECORD, LogPlace
from nosync.log.resolution import (
    TEXT,
    FileId,
    KnownLog,
    LogRecord,
    NotebookFacts,
    drawn_identity,
    may_be_same_notebook,
)

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_CELL = re.compile(r"[A-Za-z0-9_-]{1,64}")
_UNTITLED = re.compile(r"Untitled\d*(-\d+)?")
"""Names that JupyterLab generates, so the user did not choose the name of such a folder."""
_COUNTED = re.compile(r"[A-Za-z]?[a-z_-]*[0-9]{1,6}")
_NOTEBOOK_BYTES_MAX = 64 << 20
_RECORD_BYTES_MAX = 1 << 17
_CELLS_MAX = 1000
_FORMER_MAX = 16
_SEARCHED_MAX = 64
"""The maximum number of notebooks that are parsed to find a renamed one."""
LOGS_MAX = 256
"""The maximum number of logs in other folders whose records are read."""


@dataclass(frozen=True)
class NotebookFile:
    """The contents of a notebook file when it was read.

    Attributes:
        file: the identity of the file; None if it does not exist.
        cells: the identities of the cells (see `cell_identity`); None if the file is
            unreadable or has no cell ids.
        sources: the identity of each cell, by its text; None if `cells` is None.
    """

    path: str = ""
    file: FileId | None = None
    cells: frozenset[str] | None = None
    sources: Mapping[str, str] | None = None

    @classmethod
    def read(cls, path: Path | None) -> NotebookFile:
        """Reads a notebook file.

        Cost: parses the file. The cells of a file of more than 64 MiB are unknown.
        """
        if path is None:
            return cls()
        from nosync_nb.log_folders import Files

        files, where = Files(), os.path.realpath(path)
        file = file_id(where)
        with suppress(OSError, ValueError, TypeError, LookupError, RecursionError, AttributeError):
            read = json.loads(files.read(where, most=_NOTEBOOK_BYTES_MAX))["cells"]
            cells = [(_text(cell["source"]), str(cell.get("id") or "")) for cell in read]
            if cells and not any(known for _, known in cells):
                return cls(where, file)
            texts = {
                cell_identity(known, text): text for text, known in cells if _CELL.fullmatch(known)
            }
            texts.pop("", None)
            return cls(where, file, frozenset(texts), {text: i for i, text in texts.items()})
        return cls(where, file)

    def cell(self, told: object, source: str) -> str:
        """Returns the persistent identity of a running cell; empty if it has none.

        Args:
            told: the id of the cell that the front end sent, if any.
            source: the text of the cell; it identifies a cell without a valid id.
        """
        if self.file is not None and self.cells is None:
            return ""  # the file has no ids, so the front end generates new ones at each start
        if isinstance(told, str) and _CELL.fullmatch(told):
            return cell_identity(told, source.strip())
        return (self.sources or {}).get(source.strip(), "")


def cell_identity(known: str, text: str) -> str:
    """Returns an identity of a cell that no cell of another notebook has.

    That is the cell's id; or a hash of its text if the id is only a number. Tools that keep
    notebooks under version control number the cells, so every notebook has a cell "0". The identity
    is empty if such a cell has no text.
    """
    if drawn_identity(known) or not _COUNTED.fullmatch(known):
        return known
    return f"{TEXT}{hashlib.sha256(text.encode()).hexdigest()[:16]}" if text else ""


def _text(source: Any) -> str:
    return (source if isinstance(source, str) else "".join(source)).strip()


def file_id(path: str) -> FileId | None:
    """Returns device and inode number of a regular file; None if it does not exist."""
    from nosync_nb.log_folders import Files

    with suppress(OSError):
        status = Files().status(path)
        if stat.S_ISREG(status.st_mode):
            return status.st_dev, status.st_ino
    return None


def kernel_id() -> str:
    """Returns the kernel's id from a Jupyter server, which restarts keep; empty without one.

    The name of the connection file contains it. Files with other names identify no kernel, because
    they are reused, or new at every start.
    """
    if "ipykernel.kernelapp" not in sys.modules:
        return ""
    from ipykernel.kernelapp import IPKernelApp

    if not IPKernelApp.initialized():
        return ""
    found = _UUID.search(os.path.basename(str(IPKernelApp.instance().connection_file)))
    return found.group() if found else ""


def notebook_facts(
    chosen: Path | None, natural: Path | None, file: NotebookFile, running: str
) -> NotebookFacts:
    """Returns the known facts of the notebook in this kernel.

    Args:
        chosen: the log that the user has named, if any.
        natural: the default folder of the notebook's log.
        file: the contents of the notebook's file.
        running: the identity of the running cell; empty if it has no persistent one.
    """
    cells = file.cells
    if running:
        cells = frozenset({running}) | (cells or frozenset())
    return NotebookFacts(natural, file.path, file.file, cells, kernel_id(), chosen)


def read_record(folder: Path) -> LogRecord | None:
    """Reads the record that a log has of its notebook; None if it is missing or invalid."""
    from nosync_nb.log_folders import Files

    with suppress(OSError, ValueError, TypeError, LookupError, RecursionError, AttributeError):
        data = json.loads(Files().read(str(folder / RECORD), most=_RECORD_BYTES_MAX))
        file, previous = data["file"], data.get("previous")
        return LogRecord(
            str(data["notebook"]),
            None if file is None else (int(file[0]), int(file[1])),
            tuple(str(cell) for cell in data["cells"]),
            str(data["kernel"]),
            str(data["log"]),
            float(data["seen"]),
            bool(data.get("automatic", _UNTITLED.fullmatch(folder.name))),
            tuple(str(path) for path in data.get("former", ())),
            previous and (str(previous[0]), (int(previous[1][0]), int(previous[1][1]))),
        )
    return None


def former(folder: Path, record: LogRecord) -> tuple[str, ...]:
    """Returns the former paths of the folder of a log, before renames, the latest last.

    The recorded path is not one of them if a log is still there: then this folder is a copy.
    """
    old = record.log
    if old in ("", str(folder), *record.former) or LogPlace(Path(old), "").has_log:
        return record.former
    return (*record.former, old)[-_FORMER_MAX:]


def located(path: Path) -> Path:
    """Returns the current folder of a log, given its current or a former path.

    Only folders in `.nosync` are renamed. A branch is found in the folder of its log.
    """
    if LogPlace(path, "").has_log:
        return path
    tried = [path, *path.parents]
    for old in (each for each in tried if each.parent.name == ".nosync"):
        for folder in logs_in(old.parent):
            record = read_record(folder)
            if record is not None and str(old) in former(folder, record):
                return folder / path.relative_to(old)
    return path


def write_record(folder: Path, record: LogRecord) -> None:
    """Replaces the record atomically. A folder that cannot be written is skipped.

    IMPORTANT: only after the folder was admitted (`location.prepare_folder`).
    """
    from dataclasses import asdict

    from nosync_nb.log_folders import Files

    data = {**asdict(record), "cells": record.cells[-_CELLS_MAX:]}
    with suppress(OSError):
        Files().replace(str(folder / RECORD), json.dumps(data).encode(), sync=False)


def open_in(folder: Path) -> str | None:
    """Returns the process that has a log, or one of its branches, open for writing; else None."""
    from nosync_nb.log_folders import LogFolder

    return LogFolder(folder).owner


def known_logs(here: NotebookFacts) -> list[KnownLog]:
    """Returns the logs beside the notebook, and this user's registered logs elsewhere."""
    local = [] if here.natural is None else list(logs_in(here.natural.parent))
    beside = {str(each) for each in local}
    elsewhere = [Path(each) for each in registered_logs() if each not in beside]
    places = [*local, *elsewhere[-LOGS_MAX:]]
    return [_known_log(path, here) for path in places if LogPlace(path, "").has_log]


def logs_in(folder: Path) -> Iterator[Path]:
    """Yields the subfolders of a folder that may be logs; skips links."""
    from nosync_nb.log_folders import Files

    files = Files()
    with suppress(OSError):
        for name in files.names(str(folder)):
            path = folder / name
            if not name.startswith(".") and stat.S_ISDIR(files.status(str(path)).st_mode):
                yield path


def _known_log(path: Path, here: NotebookFacts) -> KnownLog:
    record = read_record(path)
    if record is None:
        return KnownLog(path)
    brought = record.log not in ("", str(path)) and LogPlace(Path(record.log), "").has_log
    names = former(path, record)
    if brought or not may_be_same_notebook(here, path, record):
        return KnownLog(path, record, "", brought, names)
    lives = find_notebook(record)
    return KnownLog(path, record, "" if lives == here.notebook else lives, former=names)


def find_notebook(record: LogRecord) -> str:
    """Returns the current path of the notebook that a log has recorded; empty if not found.

    A notebook is found at its recorded path, or under another name in the same folder.
    """
    if not record.notebook:
        return ""
    now = file_id(record.notebook)
    if now is not None and now == record.file:
        return record.notebook
    # the file was replaced, for example by git: a recorded cell proves that it is the notebook
    if now is not None:
        cells = NotebookFile.read(Path(record.notebook)).cells
        if cells and cells.intersection(record.cells):
            return record.notebook
    if record.file is None:
        return ""
    from nosync_nb.log_folders import Files

    folder = os.path.dirname(record.notebook)
    with suppress(OSError):
        for name in Files().names(folder):
            path = os.path.join(folder, name)
            if name.endswith(".ipynb") and file_id(path) == record.file:
                return path
    return ""


def renamed(notebook: Path, file: FileId | None, cell: str) -> Path:
    """Returns the path of a notebook that was renamed in its folder; the old path if not found.

    Args:
        file: the file that was at the path when the kernel started, if known.
        cell: the id of the running cell.

    Cost: one look-up while the file exists. Otherwise lists the folder, and if `file` is None,
    parses up to 64 notebooks.
    """
    from nosync_nb.log_folders import Files

    if file_id(os.path.realpath(notebook)) is not None:
        return notebook
    with suppress(OSError):
        names = [name for name in Files().names(str(notebook.parent)) if name.endswith(".ipynb")]
        paths = [notebook.parent / name for name in names]
        if file is not None:
            return next((path for path in paths if file_id(str(path)) == file), notebook)
        if drawn_identity(cell):
            paths.sort(key=lambda path: Files().status(str(path)).st_mtime, reverse=True)
            read = ((path, NotebookFile.read(path).cells) for path in paths[:_SEARCHED_MAX])
            having = [path for path, cells in read if cell in (cells or ())]
            return having[0] if len(having) == 1 else notebook  # copies have the same cells
    return notebook


def registered_logs() -> list[str]:
    """Returns the logs that this user's notebooks have used, the latest last.

    A list that another user owns or can write is ignored.
    """
    from nosync_nb.log_folders import Files

    files, where = Files(), _list_path()
    with suppress(OSError, ValueError, TypeError, RecursionError):
        status = files.status(where)
        if status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return [str(each) for each in json.loads(files.read(where, most=1 << 20))]
    return []


def register_log(*folders: Path) -> None:
    """Registers logs, so that notebooks in other folders find them; removes deleted logs."""
    from nosync_nb.log_folders import Files

    files, where, paths = Files(), _list_path(), [str(each) for each in folders]
    if set(paths) <= {*registered_logs()[-LOGS_MAX // 2 :]}:
        return
    with suppress(OSError):
        files.make_folder(os.path.dirname(where))
        lock = files.lock(f"{where}.lock", wait_s=1.0)
        if lock is None:  # the registry is optional, because logs are also found by path
            return
        try:
            existing = [
                each for each in registered_logs() if each not in paths and files.exists(each)
            ]
            files.replace(
                where, json.dumps([*existing[-2 * LOGS_MAX :], *paths]).encode(), sync=False
            )
        finally:
            lock.release()


def _list_path() -> str:
    from nosync_nb.log_folders import key_path

    return os.path.join(os.path.dirname(key_path()), "logs.json")
