"""Mutates the engine and asks whether the tests notice: `make mutate`.

Mutants are drawn by a seed, each is put into a copy of the tree, and the tests that run its lines
are run there until one fails: first those of the file that names most of what is changed, then
those of ever more files; in each group short ones that look at little else come first. What was
found is kept under `.tools/mutate`: a second run goes on where the first one stopped. A killed
mutant stays killed until its module changes; one that survived is tried again when a test file
changes, or if not all tests were asked and more of them may be now.

A mutant counts as killed if a test fails, or its time is up and is not without the mutant; as
surviving if all pass or no test runs its line. Tests with Spark, a browser or minutes of their own,
and of other processes, are not asked; the room of Spark is therefore left out unless `--room spark`
asks for it.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from typing import Any

import mutants
from copies import NO_TESTS, Copies
from covering import Cover, digest
from mutants import Mutant

TOP = Path(__file__).resolve().parent.parent
HOME = TOP / ".tools" / "mutate"
LEFT_OUT = {  # tests of text, of the set-up, of notebooks and processes: not of lines
    "test_house",
    "test_imports",
    "test_readme",
    "test_setup",
    "test_tutorials",
    "test_kernel",
    "test_processes",
    "test_browser",
    "test_disk_faults",
    "test_concurrent_readers",  # its tests trace lines themselves
}
GOAL = 0.85
PATIENCE = 4  # a mutant may take so many times the seconds of its tests, of the processor's time
OTHERS = 0.25  # of the seconds, for tests that run the module and not the line
GROUPS = (1, 4, 16)  # files whose tests are run together, at first few: collecting them takes long
EQUIVALENT = TOP / "tests" / "data" / "equivalent_mutants.json"


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
    parser.add_argument("--files", type=int, default=1000, help="of tests for each mutant")
    parser.add_argument("--look", type=float, default=60, help="seconds of the tests of a file")
    args = parser.parse_args()
    every = [
        m for m in mutants.mutants(TOP) if (m.room == args.room if args.room else m.room != "spark")
    ]
    drawn = mutants.draw(TOP, every, args.count, args.seed)
    drawn = [m for m in drawn if not args.file or args.file in m.file]
    found = Results(HOME / "results.jsonl", TOP / "tests", args.seconds, args.files)
    todo = [m for m in drawn if found.first_unreadable(m) is None]
    print(f"{len(every)} mutants, {len(drawn)} drawn, {len(drawn) - len(todo)} known already")
    with Copies(TOP, HOME, args.jobs) as copies, ThreadPoolExecutor(args.jobs) as pool:
        judge = Judge(Cover(TOP, HOME / "cover", copies, args.look), copies, args)
        asked = {pool.submit(judge.judged, m): m for m in todo}
        for each in as_completed(asked):
            mutant, (result, test) = asked[each], each.result()
            found.add(mutant, result, test)
            print(f"{result:>12}  {mutant.file}:{mutant.span[0]}  {mutant.change}", flush=True)
    return report(drawn, found)


# -- one mutant ------------------------------------------------------------------------------------


class Judge:
    """Asks tests about mutants, within the bounds that the command was given."""

    def __init__(self, cover: Cover, copies: Copies, args: argparse.Namespace) -> None:
        self._cover, self._copies = cover, copies
        self._seconds, self._files = args.seconds, args.files
        paths = sorted((TOP / "tests").rglob("test_*.py"))
        self._texts = {path: path.read_text() for path in paths if path.stem not in LEFT_OUT}
        self._engine = {path: path.read_text() for path in (TOP / "nosync_nb").rglob("*.py")}

    def judged(self, mutant: Mutant) -> tuple[str, str]:
        """Runs the tests of a mutant's line until one fails; says what came out, and which."""
        files = ranked(mutant, self._texts, self._engine)
        spent, asked, left_out = 0.0, 0, max(0, len(files) - self._files)
        for group in grouped(files[: self._files]):
            names, seconds = [], 0.0
            every, others = self._cover.of(mutant, group)
            for test in every + others:
                most = self._seconds if test in every else OTHERS * self._seconds
                if spent + seconds + test.seconds <= most:
                    names.append(test.name)
                    seconds += test.seconds
                else:
                    left_out += test in every
            result = self._asked(mutant, names, PATIENCE * seconds) if names else None
            if result:
                return result
            spent, asked = spent + seconds, asked + len(names)
        if not asked:
            return "not covered", ""
        return ("survived, but not all were asked" if left_out else "survived"), ""

    def _asked(self, mutant: Mutant, tests: list[str], limit: float) -> tuple[str, str] | None:
        """What some tests say, None if all pass."""
        with self._copies.one() as copy:
            with copy.changed(mutant):
                ended = copy.ask(tests, limit)
            failed = copy.failed()
            if ended == NO_TESTS and copy.ask(tests, limit, "--collect-only"):
                return "not run: its tests are not there any more", ""  # not for its sake
            if ended is None and copy.ask(tests, limit) is None:
                return "not run: its tests take as long without it", ""  # the machine is that slow
        if ended is None:
            return "timed out", tests[0]
        return ("killed", failed or tests[0]) if ended else None


def grouped(files: list[Path]) -> Iterator[list[Path]]:
    """Files in groups, the last of which has all that are left."""
    begin = 0
    for size in (*GROUPS, len(files)):
        if begin < len(files):
            yield files[begin : begin + size]
        begin += size


def ranked(mutant: Mutant, texts: dict[Path, str], engine: dict[Path, str]) -> list[Path]:
    """Test files, first those that name most of what is changed, or of the modules that use it."""
    path = Path(mutant.file).with_suffix("")
    module, package = ".".join(path.parts), ".".join(path.parent.parts)
    words = _words(path)
    users = [_words(user) for user, text in engine.items() if f"{module} import" in text]
    names = {name.strip("_") for name in mutant.function.split(".")} | {path.name}
    named = [re.compile(rf"\b{re.escape(name)}\b") for name in names if len(name) > 3]

    def score(test: Path) -> float:
        text = texts[test]
        own = _words(test)
        return (
            6 * (f"{module} import" in text)
            + 4 * bool(words & own)
            + 2 * any(user & own for user in users)
            + 3 * (mutant.room in test.parts)
            + 2 * (f"{package} import" in text)
            + 2 * sum(bool(name.search(text)) for name in named)
            - len(text) / 40_000
        )

    return sorted(texts, key=score, reverse=True)


def _words(path: Path) -> set[str]:
    return {word.rstrip("s") for word in path.stem.split("_")}


# -- results ---------------------------------------------------------------------------------------


class Results:
    """What is known of mutants, as lines of a file.

    Args:
        path: the file.
        tests: the folder of all tests.
        seconds: so many seconds of tests may be asked now.
        files: tests of so many files may.
    """

    def __init__(self, path: Path, tests: Path, seconds: float, files: int) -> None:
        self.path, self.seconds, self.files = path, seconds, files
        texts = (path.read_text() for path in sorted(tests.rglob("*.py")))
        self.tests = digest("".join(texts))
        self.known: dict[str, dict[str, Any]] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                each = json.loads(line)
                self.known[each["mutant"]] = each

    def key(self, mutant: Mutant) -> str:
        """Names a mutant of one state of its module."""
        now = digest(text_of(mutant.file))
        return f"{mutant.file} {now} {mutant.span} {mutant.after}"

    def of(self, mutant: Mutant) -> str | None:
        """What became of a mutant, None if that is not known or may have changed."""
        each = self.known.get(self.key(mutant))
        if each is None:
            return None
        result: str = each["result"]
        more = self.seconds > each["seconds"] or self.files > each["files"]
        again = each["tests"] != self.tests or (more and result != "survived")
        return None if again and not _is_killed(result) else result

    def add(self, mutant: Mutant, result: str, test: str) -> None:
        """Remembers what became of a mutant, and the test that told."""
        each = {"mutant": self.key(mutant), "result": result, "by": test, "tests": self.tests}
        each |= {"seconds": self.seconds, "files": self.files}
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
        result = found.first_unreadable(mutant) or "not run"
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
