"""Verifies every byte of a log and of its replicas, for a session or for a folder.

    python -m nosync_nb.verify PATH

No lock is taken: the command verifies the folder as another process reads it. It yields to commits
after each piece. It exits with 0 if all is intact, and with 1 if something is damaged (each file is
listed, with the stage and the epochs whose rows it contains). It exits with 2 if it cannot verify:
there is no log, or it has another format.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from nosync_nb.errors import NosyncError, one_line
from nosync_nb.session.durability.replication import ReplicationService
from nosync_nb.session.state.publisher import Publisher
from nosync_nb.store.replication.comparison import verified_local_files
from nosync_nb.store.verification.report import VerificationReport
from nosync_nb.trace.history.pack_plans import YieldingPause

USAGE = """\
usage: python -m nosync_nb.verify PATH

PATH is the folder of a log, which may be open elsewhere.
"""
WHOLE, DAMAGED, UNKNOWN = 0, 1, 2


class VerificationService:
    """Verifies the log of one session."""

    def __init__(self, publisher: Publisher, replication: ReplicationService) -> None:
        self._publisher = publisher
        self._replication = replication

    def verify(self) -> VerificationReport:
        """Returns the damage in the log; see `Session.verify`."""
        store = self._publisher.store
        replicas = None if store.log.mode == "r" else self._replication.settings.replicas
        with self._publisher.metrics.activities.record("verifies the log"):
            return verified_local_files(
                store.path, replicas, files=store.files, pause=YieldingPause()
            )


def main(arguments: Sequence[str]) -> int:
    """Verifies the log that the arguments name; returns the exit code of the process."""
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
