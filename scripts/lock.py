"""Locks what `make` installs: versions and hashes, in scripts/locked, for Python 3.11 and later.

    pip install uv          # in any environment
    python scripts/lock.py

Run it when pyproject.toml asks for something else, or to take newer versions; then `make clean`
and `make test`. build.txt comes first, as nothing is built in isolation; the others agree.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
LOCKED = "scripts/locked"
FOR = ["--universal", "--python-version", "3.11", "--generate-hashes", "--no-header", "--upgrade"]


def lock(name: str, *given: str) -> None:
    """Writes one file of locked versions."""
    uv = [sys.executable, "-m", "uv", "pip", "compile", "-q", *given, *FOR]
    subprocess.run([*uv, "-o", f"{LOCKED}/{name}.txt"], cwd=TOP, check=True)


def main() -> int:
    """Locks everything anew."""
    build, dev = f"{LOCKED}/build.txt", f"{LOCKED}/dev.txt"
    lock("build", f"{LOCKED}/build.in")
    extras = [word for extra in ("spark", "cloud", "dev") for word in ("--extra", extra)]
    lock("dev", "pyproject.toml", *extras, "-c", build)
    lock("spark", f"{LOCKED}/spark.in", "-c", build, "-c", dev)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
