"""Faults during epochs: a replica goes away and comes back, while all of a log is read.

python -m bench.replicas.trouble FOLDER GENERATION  scrubs a log and its replicas over and over

The keeper scrubs at its own pace, once in some hours. Here scrubbing is done without a rest, in a
process with the low priority of a keeper, so that it fills a run of a minute.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from internals import log_of

from bench.report import TOP
from nosync_nb.errors import NosyncError
from nosync_nb.files.filesystem import Files
from nosync_nb.store.replication import config
from nosync_nb.store.replication.agent.keeper import lower_priority
from nosync_nb.store.replication.agent.log_source import log_id
from nosync_nb.store.replication.agent.scrub import Scrubber

COUNT = 2


def urls(folder: Path) -> list[str]:
    """Returns the URLs of the replicas."""
    return [f"file://{folder}/replica-{number}" for number in range(COUNT)]


class Away:
    """A replica whose disk is missing for the middle third of a run."""

    def __init__(self, folder: Path, epochs: int) -> None:
        self._folder, self._moves = folder / "replica-1", (epochs // 3, 2 * epochs // 3)
        self._away = folder / "away"

    def step(self, number: int) -> None:
        """Takes it away, or brings it back, before an epoch, if it is time."""
        if number == self._moves[0]:
            self._folder.rename(self._away)
        elif number == self._moves[1]:
            self._away.rename(self._folder)


@contextmanager
def scrubbed(session: Any) -> Iterator[None]:
    """Scrubs the log without a rest during the block."""
    generation = log_of(session).generation
    command = [sys.executable, "-m", "bench.replicas.trouble", session.path, str(generation)]
    with subprocess.Popen(
        command, cwd=TOP, stdout=subprocess.DEVNULL, start_new_session=True
    ) as child:
        try:
            yield
        finally:
            child.kill()


def main() -> None:
    """Scrubs until it is killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("generation", type=int)
    options = parser.parse_args()
    lower_priority()
    files = Files()
    kept = config.read_config(files, options.folder, log_id(files, options.folder))
    replicas = [(each, list) for each in kept.replicas]
    scrubber = Scrubber(options.folder, options.generation, replicas, print, files, rate=None)
    while True:
        with suppress(NosyncError):  # of a replica that is away
            scrubber.round()


if __name__ == "__main__":
    main()
