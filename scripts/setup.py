"""Sets up what the make targets need: .venv, the package and its tools, Java, a browser.

    python3 scripts/setup.py [--browser] [--bench]

Needs Python 3.11 and nothing else; runs again in a moment if nothing changed. Everything stays
below the repository (.venv, .tools) but what apt installs, and apt is used only where it asks
for no password. Machine paths go to `.tools/env`, which scripts/run reads.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import shlex
import shutil
import sys
import time
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import system
from steps import TOOLS, TOP, SetupError, Step, megabytes, run, say

VENV = TOP / ".venv"
PYTHON = VENV / "bin" / "python"
BENCH = TOOLS / "bench"
STAMP = TOOLS / "stamp.json"
TMP = TOOLS / "tmp"
LOCKED = TOP / "scripts" / "locked"
"""Versions with their hashes, for every Python from 3.11 on; made by `make lock`."""

SPACE = 4_000_000_000
SCRIPTS = ("setup", "steps", "system")


def newer_python() -> str | None:
    """Returns a Python of this machine that is recent enough, for when `python3` is not."""
    names = [f"python3.{minor}" for minor in (11, 12, 13, 14)]
    return next((path for name in names if (path := shutil.which(name))), None)


def fingerprint() -> dict[str, object]:
    """Returns what the set-up depends on; equal to the stamp if there is nothing to do."""
    import tomllib

    project = tomllib.loads((TOP / "pyproject.toml").read_text())
    project["tool"] = project["tool"]["hatch"]
    code = "".join((TOP / "scripts" / f"{name}.py").read_text() for name in SCRIPTS)
    locked = "".join(path.read_text() for path in sorted(LOCKED.iterdir()))
    text = json.dumps(project, sort_keys=True) + code + locked
    return {
        "inputs": hashlib.sha256(text.encode()).hexdigest(),
        "python": sys.version,
        "folder": str(TOP),  # scripts in .venv name it: a moved copy is set up again
    }


def read_stamp(wanted: dict[str, object]) -> dict[str, object]:
    """Returns the stamp of the last set-up if it depended on the same; else an empty one."""
    try:
        stamp: dict[str, object] = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}
    return stamp if {**stamp, **wanted} == stamp else {}


def is_done(stamp: dict[str, object], parts: list[str]) -> bool:
    """Tells whether the set-up holds these parts and its files are still there."""
    there = PYTHON.exists() and os.access(f"{stamp.get('java')}/bin/java", os.X_OK)
    return there and set(parts) <= set(stamp["parts"])  # type: ignore[call-overload]


def pip_env() -> dict[str, str]:
    """Returns an environment in which pip asks nothing and installs only where it is told."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    for name in ("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_REQUIRE_HASHES"):
        env.pop(name, None)
    TMP.mkdir(exist_ok=True)
    env.update(
        PIP_DISABLE_PIP_VERSION_CHECK="1",
        PIP_NO_INPUT="1",
        PIP_ROOT_USER_ACTION="ignore",
        PIP_PROGRESS_BAR="off",
        PIP_RETRIES="5",
        TMPDIR=str(TMP),  # PySpark is unpacked and built here: 1.4 GB, too much for many a /tmp
    )
    if shutil.disk_usage(Path.home()).free < SPACE:
        env["PIP_NO_CACHE_DIR"] = "1"
    return env


def make_venv(folder: Path) -> None:
    """Makes a virtual environment, or keeps one of this Python that works."""
    python = folder / "bin" / "python"
    same = f"import sys, pip; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"
    if python.exists() and run([str(python), "-c", same], env=pip_env()):
        return
    system.ensure_venv_module()
    with Step(f"virtual environment {folder.relative_to(TOP)}", folder) as step:
        step.need([sys.executable, "-m", "venv", "--clear", str(folder)])
        step.need(locked(python, "build"), env=pip_env())  # also a pip of today


def locked(python: Path, name: str) -> list[str]:
    """Returns the command that installs what a file of `LOCKED` names, and nothing else.

    Source archives are built with what is installed: an isolated build would fetch more, unchecked.
    """
    pip = [str(python), "-m", "pip", "install", "--require-hashes", "--no-build-isolation"]
    return [*pip, "-r", str(LOCKED / f"{name}.txt")]


def install() -> None:
    """Installs PySpark first, since it is most of the waiting, then the rest."""
    with Step("pip and what builds packages", VENV) as step:
        step.need(locked(PYTHON, "build"), env=pip_env())  # of a venv that was kept, too
    with Step("PySpark (a source archive of 456 MB, some minutes)", VENV) as step:
        step.need(locked(PYTHON, "spark"), env=pip_env())
    with Step("NoSync, JupyterLab and the tools (about 250 MB)", VENV) as step:
        step.need(locked(PYTHON, "dev"), env=pip_env())
        own = ["install", "--no-build-isolation", "--no-deps", "-e", "."]  # has no hash
        step.need([str(PYTHON), "-m", "pip", *own], env=pip_env())
        step.need([str(PYTHON), "-m", "nosync", "install", "--sys-prefix"])


def install_bench() -> None:
    """Installs the peers of the benchmark apart: they pin other versions of what we use."""
    import tomllib

    extras = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    make_venv(BENCH)
    with Step("peers of the benchmark: Pathway (about 1.5 GB installed), and data", BENCH) as step:
        python = str(BENCH / "bin" / "python")
        step.need([python, "-m", "pip", "install", *extras["bench"]], env=pip_env())


def write_env(java: str, chromium: str | None) -> None:
    """Writes what scripts/run exports."""
    lines = [f"export JAVA_HOME={shlex.quote(java)}"]
    if chromium:
        lines.append(f"export NOSYNC_CHROMIUM={shlex.quote(chromium)}")
    lines.append(f'export PATH={shlex.quote(str(VENV / "bin"))}:"$PATH"')
    (TOOLS / "env").write_text("\n".join(lines) + "\n")


def set_up(parts: list[str]) -> None:
    """Does what is not done yet, then writes the stamp."""
    wanted = fingerprint()
    stamp = read_stamp(wanted)
    if stamp and is_done(stamp, parts):
        return
    parts = sorted({*parts, *stamp.get("parts", [])})  # type: ignore[misc]
    started = time.monotonic()
    free = shutil.disk_usage(TOP).free
    if free < SPACE and not VENV.exists():
        raise SetupError(
            f"{megabytes(free)} free below {TOP}, the set-up needs {megabytes(SPACE)}\n"
            "Free some space, or clone the repository to a larger disk."
        )
    say(f"Setting up below {TOP} (once; {megabytes(free)} free)")
    STAMP.unlink(missing_ok=True)
    (TOOLS / "setup.log").write_bytes(b"")
    make_venv(VENV)
    install()
    java = system.ensure_java()
    chromium = system.ensure_chromium() if "browser" in parts else system.find_chromium()
    if "bench" in parts:
        install_bench()
    write_env(java, chromium)
    shutil.rmtree(TMP, ignore_errors=True)
    STAMP.write_text(json.dumps({**wanted, "parts": parts, "java": java}))
    say(f"Ready after {time.monotonic() - started:.0f} s")


def main() -> int:
    """Runs the set-up under a lock: two make commands at once do it once."""
    if sys.version_info < (3, 11):  # noqa: UP036  (this file runs before anything is chosen)
        python = newer_python()
        if python is None:
            say(f"NoSync needs Python 3.11 or later; this is {sys.version.split()[0]}")
            return 1
        os.execv(python, [python, *sys.argv])
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--browser", action="store_true", help="a Chromium for the tests")
    parser.add_argument("--bench", action="store_true", help="the peers of the benchmark")
    options = vars(parser.parse_args())
    TOOLS.mkdir(exist_ok=True)
    with (TOOLS / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Another set-up of this folder is running: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            set_up([part for part in ("browser", "bench") if options[part]])
        except SetupError as error:
            print(f"\nSet-up stopped: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("\nSet-up interrupted: run the same command again to continue", file=sys.stderr)
            return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
