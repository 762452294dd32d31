"""Runs measurements in processes of their own, and prints them as tables with ratios."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

TOP = Path(__file__).resolve().parent.parent
PATHWAY = TOP / ".tools" / "bench" / "bin" / "python"
TIMEOUT_SECONDS = 3600


class MeasurementError(Exception):
    """A measurement failed; the message is the end of its output."""


def run(*arguments: str | int | Path, python: Path | None = None) -> dict[str, Any]:
    """Runs a module of this package in a process of its own and reads the JSON it prints last."""
    command = [str(python or sys.executable), *map(str, arguments)]
    done = subprocess.run(
        command,
        cwd=TOP,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        raise MeasurementError("\n".join((done.stdout + done.stderr).splitlines()[-8:]))
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def run_killed(*arguments: Any) -> dict[str, Any]:
    """Runs a process that prints its result and then kills itself; returns the result."""
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False)
    if done.returncode != -signal.SIGKILL:
        raise MeasurementError(done.stderr[-2000:])
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def print_result(found: dict[str, Any]) -> None:
    """Prints a result as one line, at once: the process may be about to kill itself."""
    print(json.dumps(found), flush=True)


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Returns median, p99, p99.9 and the greatest; the first tenth is warm-up and left out."""
    kept = np.asarray(values)[len(values) // 10 :]
    p50, p99, p999 = np.percentile(kept, [50, 99, 99.9])
    return {"p50": float(p50), "p99": float(p99), "p99.9": float(p999), "max": float(kept.max())}


def number(value: float) -> str:
    """Writes a figure with three significant digits."""
    if value == 0:
        return "0"
    digits = max(0, 2 - int(np.floor(np.log10(abs(value)))))
    return f"{value:,.{min(digits, 4)}f}"


class Table:
    """A table in Markdown that is printed as figures come in.

    Columns are as wide as their titles: a row is printed at once, not kept for alignment.
    """

    def __init__(self, title: str, *columns: str) -> None:
        self.widths = [max(len(column), 8) for column in columns]
        print(f"\n### {title}\n")
        self._line(columns)
        self._line(["-" * width for width in self.widths])

    def row(self, *cells: Any) -> None:
        """Prints a row; numbers with three significant digits, None as a dash."""
        self._line([self._text(cell) for cell in cells])

    @staticmethod
    def _text(cell: Any) -> str:
        if cell is None:
            return "-"
        return number(cell) if isinstance(cell, float) else str(cell)

    def _line(self, cells: Sequence[str]) -> None:
        filled = (
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(cells, self.widths, strict=True))
        )
        print(f"| {' | '.join(filled)} |", flush=True)


class Goals:
    """The promised figures, and those of this run."""

    def __init__(self) -> None:
        self.kept: list[tuple[str, float, float]] = []

    def add(self, what: str, figure: float, limit: float, *, at_least: bool = False) -> None:
        """Notes a figure and its limit (the greatest allowed, or the least)."""
        self.kept.append((what, figure, -limit if at_least else limit))

    def show(self) -> int:
        """Prints all; returns how many were missed."""
        if not self.kept:
            return 0
        table = Table("Goals", f"{'figure':58}", "measured", "goal", "")
        missed = 0
        for what, figure, limit in self.kept:
            good = figure >= -limit if limit < 0 else figure <= limit
            missed += not good
            sign = ">=" if limit < 0 else "<="
            table.row(what, figure, f"{sign} {number(abs(limit))}", "kept" if good else "MISSED")
        return missed
