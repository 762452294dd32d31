"""Steps of the set-up: each is announced, timed, measured, and logged to one file.

A step is a list of commands. Their output goes to `.tools/setup.log`, so that warnings of tools
frighten nobody; of a step that fails the end of the log is shown.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
TOOLS = TOP / ".tools"
LOG = TOOLS / "setup.log"
TICK_SECONDS = 20


class SetupError(Exception):
    """The set-up cannot go on; the message says what to do."""


def say(text: str) -> None:
    """Prints a line at once, also into a pipe."""
    print(text, flush=True)


def size_bytes(*folders: Path) -> int:
    """Returns the bytes of the files below some folders, links not followed."""
    total = 0
    for folder in folders:
        for root, _, names in os.walk(folder):
            for name in names:
                try:
                    total += os.lstat(os.path.join(root, name)).st_size
                except OSError:
                    continue  # a tool removes its own temporary files while we count
    return total


def megabytes(count: float) -> str:
    """Writes a size for people."""
    return f"{count / 1e6:.0f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"


def run(command: list[str], *, env: dict[str, str] | None = None, cwd: Path = TOP) -> bool:
    """Runs a command into the log; True if it succeeded. A long one says that it lives."""
    started = time.monotonic()
    with LOG.open("ab") as log:
        log.write(f"\n$ {' '.join(command)}\n".encode())
        log.flush()
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, cwd=cwd
            )
        except OSError as error:
            log.write(f"{error}\n".encode())
            return False
        try:
            while True:
                try:
                    return process.wait(timeout=TICK_SECONDS) == 0
                except subprocess.TimeoutExpired:
                    say(f"    ... {time.monotonic() - started:.0f} s: {last_line()[:90]}")
        except BaseException:
            process.terminate()
            process.wait()
            raise


def last_line() -> str:
    """Returns the last line of the log that says something."""
    lines = [line.strip() for line in log_tail(20)]
    return next((line for line in reversed(lines) if line), "")


def log_tail(count: int) -> list[str]:
    """Returns the last lines of the log; progress bars (carriage returns) are cut off."""
    with LOG.open("rb") as log:
        log.seek(max(0, LOG.stat().st_size - 20_000))
        text = log.read().decode(errors="replace")
    return [line.rsplit("\r", 1)[-1] for line in text.rstrip().split("\n")][-count:]


class Step:
    """A `with` block that prints what is done, then how much it took.

    `folders` are measured: the step's size is their growth.
    """

    def __init__(self, title: str, *folders: Path) -> None:
        self.title = title
        self.folders = folders

    def __enter__(self) -> Step:
        say(f"  {self.title}")
        self.before = size_bytes(*self.folders)
        self.started = time.monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            return
        grown = size_bytes(*self.folders) - self.before
        size = f"{megabytes(grown)}, " if grown >= 1000 else ""
        say(f"    {size}{time.monotonic() - self.started:.1f} s")

    def need(self, command: list[str], **options: object) -> None:
        """Runs a command that must succeed; a second time if it did not: downloads break."""
        if run(command, **options) or run(command, **options):  # type: ignore[arg-type]
            return
        for line in log_tail(12):
            print(f"    | {line}", file=sys.stderr)
        raise SetupError(
            f"this step failed twice: {self.title}\n"
            f"The whole output is in {LOG.relative_to(TOP)}. If a download failed, look at the "
            "network, the proxy (https_proxy) or the index (PIP_INDEX_URL), then run the same "
            "command again: it continues where it stopped."
        )
