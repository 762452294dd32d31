"""The golden logs: their location, a session over one as text, and the epoch that follows.

Format 1 is frozen, so they are never written again. `expected.json` has the rows of every stage at
every epoch.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

from internals import settle_background

from nosync_nb import Session
from nosync_nb.store.timetravel import branches

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "v1"
KEY = GOLDEN / "key"
EXPECTED = GOLDEN / "expected.json"
PLACE = Path("/golden")
"""The recorded path of the logs; their true one is irrelevant."""
LABELS = {
    "orders": {"first load": 1, "a block": 25, "halfway": 21, "tail": 41},
    "graph": {"first owner": 13, "second owner": 26},
    "forks": {"begun": 1, "tail": 16},
}
"""The logs, and their labelled epochs."""

BRANCHES = ("before-rewind-1", "before-rewind-2", "what_if", "what_if/inner")
"""The branches of the last log: backups of rewinds, a branch, and its branch."""

CUSTOMERS = "customer int, name string, region string, credit decimal(8, 2)"

FIRST_ORDERS = [(i, i % 5, i * 1.5, "early") for i in range(8)]
"""The rows of the load with key `first`, which is skipped when repeated."""

BLOCK = [(500, 5, 5.0, "block")]
"""The rows of the block with a key."""


def copied(name: str, folder: Path) -> Path:
    """A copy of a log for a test, private as logs are; a checkout keeps no modes."""
    log = folder / name
    shutil.copytree(GOLDEN / name, log)
    for path in (log, *log.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return log


def branch_of(log: Path, name: str) -> Path:
    return Path(branches.branch_folder(str(log), name))


def carried(folder: Path) -> Path:
    """A private copy of the key that signed the logs."""
    path = folder / "carried"
    shutil.copyfile(KEY, path)
    path.chmod(0o600)
    return path


def texts(rows: Iterable[Any]) -> list[str]:
    """Rows as texts for JSON, in which unequal values differ."""
    return [repr(tuple(row)) for row in rows]


def shown(session: Session) -> dict[str, Any]:
    """All readable contents: the changes of each stage and version, by epoch."""
    return {
        "now": session.now,
        "reads": {name: sorted(below) for name, below in sorted(session.info.reads.items())},
        "rows": {name: states(session, name) for name in sorted(session.info.reads)},
    }


def states(session: Session, name: str) -> list[list[Any]]:
    """The history of a stage: removed and added rows by epoch; None where a range begins."""
    result: list[list[Any]] = []
    for epochs in session[name].history():
        before: Counter[str] = Counter()
        for at in epochs:
            held = Counter(texts(session[name].rows(at=at)))
            gone, came = before - held, held - before
            if gone or came or at in (epochs[0], epochs[-1]):
                first = at == epochs[0]
                gone_texts = None if first else sorted(gone.elements())
                result.append([at, gone_texts, sorted(came.elements())])
            before = held
    return result


def newest(session: Session) -> dict[str, list[str]]:
    """The current rows of the live stages."""
    names = [n for n in sorted(session.info.reads) if "@" not in n and n not in session.stale]
    return {name: texts(session[name].rows()) for name in names}


def go_on(session: Session, log: str) -> None:
    """Commits the epochs after the last one of a log: every input loses and gets rows."""
    settle_background(session)
    if log == "orders":
        session["orders"].insert(FIRST_ORDERS, once="first")
        with session.epoch(once="block") as block:
            session["orders"].insert(BLOCK)
        assert block.skipped
        orders = session["orders"].rows()
        session["orders"].remove(orders[::9])
        session["orders"].insert([(900 + i, i, 0.25 * i, "née late") for i in range(7)])
        session["customers"].upsert([(2, "Zoe", "north", Decimal("1.25")), (77, "Yan", None, None)])
        session["customers"].delete([3])
        session["draws"].remove(session["draws"].rows()[::2])
    elif log == "forks":
        rows = session["rows"].rows()
        session["rows"].remove(rows[::4])
        session["rows"].insert([(i, 11 - i) for i in range(5)])
        session["named"].upsert([(2, "née two"), (9, "nine")])
        session["named"].delete([1])
    else:
        edges = session["edges"].rows()
        session["edges"].remove(edges[::6])
        session["edges"].insert([(40, 1), (3, 40), (41, 41)])
        events = session["events"].rows()
        session["events"].remove(events[::5])
        session["events"].insert([(row.ts, "c", 7) for row in events[1::7]])
    session.commit(label="after")
    for name in ("orders", "edges", "rows"):
        if name in session:
            session[name].remove(session[name].rows()[::4])
    session.commit()
