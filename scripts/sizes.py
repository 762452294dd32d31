"""Reports modules, lines and files by folder: `make sizes`. A report, which bounds nothing."""

from __future__ import annotations

import os
import subprocess
from collections import defaultdict
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
PACKAGES = ("nosync_nb", "magics", "widgets", "tests")


def report() -> str:
    """Returns the table: for each folder without its subfolders, and for each package."""
    command = ["git", "ls-files", *PACKAGES]
    listed = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=True)
    modules: dict[str, int] = defaultdict(int)
    lines: dict[str, int] = defaultdict(int)
    files: dict[str, int] = defaultdict(int)
    for name in filter(os.path.exists, (str(TOP / each) for each in listed.stdout.split())):
        path = Path(name).relative_to(TOP)
        files[str(path.parent)] += 1
        if path.suffix == ".py":
            count = Path(name).read_bytes().count(b"\n")
            for place in {str(path.parent), path.parts[0]}:
                modules[place] += 1
                lines[place] += count
    rows = [(place, modules[place], lines[place], files[place]) for place in sorted(modules)]
    rows = [row for row in rows if row[0] not in PACKAGES]
    rows += [(place, modules[place], lines[place], 0) for place in PACKAGES]
    head = f"{'folder':<40}{'modules':>9}{'lines':>9}{'files':>7}"
    return "\n".join([head, *(f"{p:<40}{m:>9}{n:>9,}{f or '':>7}" for p, m, n, f in rows)])


if __name__ == "__main__":
    print(report())
