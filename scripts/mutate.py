"""Mutates the engine and asks whether the tests notice: `make mutate`.

Mutants are drawn by a seed, each is put into a copy of the tree, and the tests that run its lines
are run there, short ones that look at little else first, until one fails. What was found is kept
under `.tools/mutate`: a second run goes on where the first one stopped. A killed mutant stays
killed until its module changes; one that survived is tried again when a test file changes, or if
there are tests that were not asked for want of `--seconds` and there are more now.

A mutant counts as killed if a test fails or its time is up, as surviving if all pass or no test
runs its line. Tests with Spark, a browser or minutes of their own, and of other processes, are not
asked; the room of Spark is therefore left out unless `--room spark` asks for it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import mutants
from covering import digest
from mutants import Mutant

TOP = Path(__file__).resolve().parent.parent
HOME = TOP / ".tools" / "mutate"
LEFT_OUT = {  # tests of text, of the set-up, of notebooks and processes: not of lines
    "test_house",
    "test_imports",
    "test_readme",
    "test_setup",
    "test_notebooks",
    "test_magics_kernel",
    "test_log_processes",
    "test_browser",
    "test_bad_disks",
    "test_snapshot",  # its tests trace lines themselves
}
GOAL = 0.85
PATIENCE = 4  # a mutant may take so many times the seconds of its tests, of the processor's time
START_S = 30
WAITING = 10  # and so many times as much by the clock: the machine does other things too
NO_TESTS = 4  # how pytest ends if it cannot find a test, or cannot import what it is in
OTHERS = 0.25  # of the seconds, for tests that run the module and not the line
EQUIVALENT = TOP / "tests" / "data" / "equivalent_mutants.json"


@dataclass
class Test:
    """A test, with what it runs."""

    name: str
    seconds: float
    lines: dict[str, int]
    size: int


@dataclass
class Cover:
    """Which tests run which lines, and of which state of the sources that is known."""

    tests: list[Test] = field(default_factory=list)
    engine: dict[str, dict[str, str]] = field(default_factory=dict)
    functions: dict[str, dict[str, list[tuple[str, int, int]]]] = field(default_factory=dict)

    def of(self, mutant: Mutant, now: str) -> tuple[list[Test], list[Test]]:
        """The tests that run a mutant's line, and others that run its module.

        Where the module changed since, or the line runs when the module is imported, the tests
        that run its function, or else any function of the module. The others count too: what is
        computed once for all tests (by a cache) shows as run by the first of them alone. Those
        most devoted to the module, for the seconds they take, come first.
        """
        found, others = [], []
        for test in self.tests:
            mask = test.lines.get(mutant.file, 0)
            source = test.name.partition("::")[0]
            spans = self.functions[source].get(mutant.file, [])
            if mask and mask & self._wanted(mutant, spans, self.engine[source], now):
                found.append(test)
            elif mask:
                others.append(test)
        for tests in (found, others):
            tests.sort(key=lambda t: -t.lines[mutant.file].bit_count() / t.size / (t.seconds + 0.2))
        return found, others

    def _wanted(
        self, mutant: Mutant, spans: list[tuple[str, int, int]], engine: dict[str, str], now: str
    ) -> int:
        inside = [(first, last) for name, first, last in spans if name == mutant.function]
        if not inside:  # runs at import: whatever the module is used for
            inside = [(first, last) for _, first, last in spans]
        elif engine.get(mutant.file) == now:
            inside = [(mutant.statement, mutant.span[2])]
        return sum((1 << last + 1) - (1 << first) for first, last in inside if last >= first)


@cache
def text_of(file: str) -> str:
    """A module as it was when the command began."""
    return (TOP / file).read_text()


def main() -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="make mutate ARGS=...", description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--room", choices=mutants.ROOMS, help="of this room only")
    parser.add_argument("--file", help="of files whose path contains this only")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=120, help="of tests for each mutant")
    parser.add_argument("--fresh", action="store_true", help="looks anew at what tests cover")
    parser.add_argument("--known", action="store_true", help="looks at new test files only")
    args = parser.parse_args()
    every = [
        m
        for m in mutants.mutants(TOP)
        if (m.room == args.room if args.room else m.room != "spark")
        and (not args.file or args.file in m.file)
    ]
    drawn = mutants.draw(TOP, every, args.count, args.seed)
    tests = (p for p in sorted((TOP / "tests").rglob("test_*.py")) if p.stem not in LEFT_OUT)
    cover = covered(list(tests), args)
    found = Results(TOP, args.seconds)
    todo = [m for m in drawn if found.of(m) is None]
    print(f"{len(every)} mutants, {len(drawn)} drawn, {len(drawn) - len(todo)} known already")
    with Places(args.jobs) as places, ThreadPoolExecutor(args.jobs) as pool:
        asked = {pool.submit(judged, m, cover, places, args.seconds): m for m in todo}
        for each in as_completed(asked):
            mutant, result = asked[each], each.result()
            found.add(mutant, result)
            print(f"{result:>12}  {mutant.file}:{mutant.span[0]}  {mutant.change}", flush=True)
    return report(drawn, found)


# -- what tests cover ------------------------------------------------------------------------------


def covered(files: list[Path], args: argparse.Namespace) -> Cover:
    """Loads what test files cover, and looks at those that are new or changed."""
    home = HOME / "cover"
    home.mkdir(parents=True, exist_ok=True)
    stale = [p for p in files if args.fresh or not _is_known(result_of(home, p), p, args)]
    if stale:
        print(f"looking at what {len(stale)} of {len(files)} test files cover ...", flush=True)
    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(lambda p: _collect(p, result_of(home, p)), stale))
    cover = Cover()
    for path in files:
        result = result_of(home, path)
        if not result.exists():
            print(f"{path.name} could not be looked at: see {result.with_suffix('.log')}")
            continue
        found = json.loads(result.read_text())
        test = str(path.relative_to(TOP))
        cover.engine[test], cover.functions[test] = found["engine"], found["functions"]
        there = path.read_text()
        for name, each in found["tests"].items():
            if f"def {name.partition('::')[2].partition('[')[0].split('::')[-1]}(" not in there:
                continue
            lines = {file: int(mask, 16) for file, mask in each["lines"].items()}
            size = sum(mask.bit_count() for mask in lines.values())
            if size:
                cover.tests.append(Test(name, each["seconds"], lines, size))
    return cover


def result_of(home: Path, test: Path) -> Path:
    """Where it stands what a test file covers; two rooms have files of one name."""
    return home / f"{test.parent.name}-{test.stem}.json"


def _is_known(result: Path, test: Path, args: argparse.Namespace) -> bool:
    if not result.exists():
        return False
    return args.known or json.loads(result.read_text())["test"] == digest(test.read_text())


def _collect(test: Path, result: Path) -> None:
    command = [sys.executable, str(TOP / "scripts" / "covering.py"), str(test.relative_to(TOP))]
    with result.with_suffix(".log").open("w") as log:
        subprocess.run([*command, str(result)], cwd=TOP, env=_env(TOP), stdout=log, stderr=log)


def _env(top: Path) -> dict[str, str]:
    return os.environ | {
        "PYTHONPATH": f"{top}:{top / 'widgets'}:{top / 'magics'}",
        "PYTHONDONTWRITEBYTECODE": "1",  # a mutant of the same second and size is another file
        "HYPOTHESIS_PROFILE": "mutate",
    }


# -- one mutant ------------------------------------------------------------------------------------


class Places:
    """Copies of the tree, one for each job; nothing of the tree itself is touched."""

    def __init__(self, count: int) -> None:
        self.free: queue.Queue[Path] = queue.Queue()
        self.all = [HOME / f"copy{number}" for number in range(count)]

    def __enter__(self) -> Places:
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard"],
            cwd=TOP,
            capture_output=True,
            text=True,
            check=True,
        )
        for place in self.all:
            shutil.rmtree(place, ignore_errors=True)
            for name in listed.stdout.splitlines():
                if (TOP / name).is_file():
                    (place / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(TOP / name, place / name)
            self.free.put(place)
        return self

    def __exit__(self, *_: object) -> None:
        for place in self.all:
            shutil.rmtree(place, ignore_errors=True)


def judged(mutant: Mutant, cover: Cover, places: Places, seconds: float) -> str:
    """Runs the tests of a mutant's line until one fails."""
    source = text_of(mutant.file)
    tests, spent, left_out = [], 0.0, 0
    every, others = cover.of(mutant, digest(source))
    for test in every + others:
        most = seconds if test in every else OTHERS * seconds
        if spent + test.seconds <= most:
            tests.append(test)
            spent += test.seconds
        else:
            left_out += test in every
    if not tests:
        return "not covered"
    place, names = places.free.get(), [test.name for test in tests]
    try:
        (place / mutant.file).write_text(mutant.apply(source))
        ended = run(place, names, START_S + PATIENCE * spent)
        if ended == NO_TESTS:  # for the mutant's sake, or do they have other names by now?
            (place / mutant.file).write_text(source)
            if run(place, names, START_S + PATIENCE * spent, "--collect-only"):
                return "not run: its tests are not there any more"
    finally:
        (place / mutant.file).write_text(source)
        places.free.put(place)
    if ended is None:
        return "timed out"
    if ended == 0:
        return f"survived, but {left_out} of {len(every)} not asked" if left_out else "survived"
    return "killed"


def run(place: Path, tests: list[str], limit: float, *options: str, **env: str) -> int | None:
    """The exit code of some tests, None if they take too long.

    Args:
        limit: of seconds of the processor's time, where that can be told.
    """
    (place / "chosen").write_text("\n".join(tests))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=line", "-p", "no:cacheprovider"]
    with (place / "out").open("w") as out:
        process = subprocess.Popen(
            [*command, "--timeout=0", *options, "@chosen"],
            cwd=place,
            env=_env(place) | env,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        if sys.platform == "linux":
            resource.prlimit(process.pid, resource.RLIMIT_CPU, (int(limit) + 1, int(limit) + 1))
        try:
            code = process.wait(WAITING * limit)
            return None if code in (-signal.SIGXCPU, -signal.SIGKILL) else code
        except subprocess.TimeoutExpired:
            return None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            end_others(place)


def end_others(place: Path) -> None:
    """Ends what tests of a place have left behind in groups of their own: keepers, servers."""
    mark = f"PYTHONPATH={place}:".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (process / "environ").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)


# -- results ---------------------------------------------------------------------------------------


class Results:
    """What is known of mutants, as lines of a file."""

    def __init__(self, top: Path, seconds: float) -> None:
        self.seconds = seconds
        self.path = HOME / "results.jsonl"
        tests = sorted((top / "tests").rglob("*.py"))
        self.tests = digest("".join(path.read_text() for path in tests))
        self.known: dict[str, dict[str, str]] = {}
        if self.path.exists():
            for line in self.path.read_text().splitlines():
                each = json.loads(line)
                self.known[each["mutant"]] = each

    def key(self, mutant: Mutant) -> str:
        """Names a mutant of one state of its module."""
        now = digest(text_of(mutant.file))
        return f"{mutant.file} {now} {mutant.span} {mutant.after}"

    def of(self, mutant: Mutant) -> str | None:
        """What became of a mutant, None if that is not known or may have changed."""
        each = self.known.get(self.key(mutant))
        if each is None or _is_killed(each["result"]):
            return None if each is None else each["result"]
        more = "asked" in each["result"] and float(each["seconds"]) < self.seconds
        return None if more or each["tests"] != self.tests else each["result"]

    def add(self, mutant: Mutant, result: str) -> None:
        """Remembers what became of a mutant."""
        each = {"mutant": self.key(mutant), "result": result, "tests": self.tests}
        each["seconds"] = str(self.seconds)
        with self.path.open("a") as file:
            self.known[each["mutant"]] = each
            file.write(json.dumps(each) + "\n")


def _is_killed(result: str) -> bool:
    return result in ("killed", "timed out")


def report(drawn: Iterable[Mutant], found: Results) -> int:
    """Prints the rate of each room and what survived; returns the exit code."""
    known = json.loads(EQUIVALENT.read_text()) if EQUIVALENT.exists() else []
    equal = {(e["function"], e["line"], e["before"], e["after"]): e["reason"] for e in known}
    rooms: dict[str, list[bool]] = defaultdict(list)
    lines = []
    for mutant in drawn:
        result = found.of(mutant) or "not run"
        line = text_of(mutant.file).splitlines()[mutant.span[0] - 1].strip()
        reason = equal.get((mutant.function, line, mutant.before, mutant.after))
        if not _is_killed(result):
            text = f"{result}: {mutant.file}:{mutant.span[0]} {mutant.function}  {mutant.change}"
            lines.append(text + (f"  (equivalent: {reason})" if reason else ""))
        if reason is None:
            rooms[mutant.room].append(_is_killed(result))
    print("\nwhat no test noticed:", *sorted(lines), sep="\n  ")
    print("\nroom          mutants  killed  rate  (equivalents left out)")
    every = [each for room in rooms.values() for each in room]
    for room, kills in [*sorted(rooms.items()), ("all", every)]:
        rate = sum(kills) / max(1, len(kills))
        print(f"{room:12} {len(kills):8} {sum(kills):7} {rate:5.0%}")
    return 0 if sum(every) >= GOAL * len(every) else 1


if __name__ == "__main__":
    began = time.monotonic()
    code = main()
    print(f"{time.monotonic() - began:.0f} s")
    sys.exit(code)
