"""Takes one safeguard at a time out of the log and its replicas: do the fault tests go red?

    python scripts/mutate_faults.py [--sample 12] [--seed 1] [--file PART] [--list] [--new]

Safeguards are read off the syntax tree of `nosync_nb/files/filesystem.py`, `nosync_nb/store/log`
and `nosync_nb/store/replication`, none is picked by hand: each call that syncs a file or a folder,
each test of a checksum, a digest, a generation or a term, and each pair of steps of which the first
must be done before the second is noted.

The tests that run its line are asked, quick and devoted ones first, then those of other processes
and simulated lives, until one fails; what survives is listed. `tests/data/safeguards.json` names
the test that missed each safeguard the last time, which is therefore asked before all others, and
says of a few why nobody can miss them.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import mutate
from copies import Copies
from covering import Cover, Test, digest
from mutants import Mutant, Span

TOP = mutate.TOP
PLACES = ("nosync_nb/files/filesystem.py", "nosync_nb/store/log", "nosync_nb/store/replication")
SYNCS = {"sync", "sync_folder", "_sync_leftovers", "fsync", "fdatasync", "note_durable"}
CHECKS = {
    "check",
    "_check",
    "check_format",
    "check_secret_file",
    "_later",
    "holds",
    "verify",
    "compare_digest",
}
WRITES = {"append", "write_at", "rename", "replace", "store", "promise"}
CLUES = ("crc", "digest", "checksum", "inverse", "generation", "term", "incarnation", "token")
CLUES += ("promise", "acknowledged", "stamp", "magic", "log_id", "deleted", "nlink", "before")
ASKED = ("files", "store", "session", "properties")
"""The folders of the tests that are asked: of their files those that are marked `fault`."""
LAST = (
    ("tests/store/log/test_processes.py", "tests/properties/faults/test_disk_faults.py"),
    ("tests/store/replication/test_simulated_lives.py",),
)
"""What is asked last: of other processes nobody knows which lines they run, lives take minutes."""
KNOWN = TOP / "tests" / "data" / "safeguards.json"
LIMIT_S = 600.0
LOOK_S = 60.0
TESTS_S = (0.5, 5.0, 60.0)
"""How long tests are asked, a few at first: collecting them takes longer than most take."""
START_S = 0.2
LIVES = "200"
MARKS = "fault and not spark and not browser"


def safeguards(source: str, file: str) -> list[Mutant]:
    """Every safeguard of a module, taken out."""
    walk = _Walk(source, file)
    walk.visit(ast.parse(source))
    return walk.found


def everything() -> list[Mutant]:
    """Every safeguard of the product, in the order of files and lines."""
    texts = ((str(path.relative_to(TOP)), path.read_text()) for path in _paths())
    return [mutant for file, text in texts for mutant in safeguards(text, file)]


def drawn(every: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """Some of them; a change elsewhere, or a new safeguard, hardly ever draws others."""

    def rank(mutant: Mutant) -> str:
        return digest(f"{seed} {mutant.file} {mutant.function} {mutant.kind} {mutant.before}")

    return sorted(every, key=rank)[:count]


def _paths() -> Iterator[Path]:
    for place in PLACES:
        path = TOP / place
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]


class _Walk(ast.NodeVisitor):
    """Collects the safeguards of one module."""

    def __init__(self, source: str, file: str) -> None:
        self.file = file
        self.lines = source.encode().splitlines(keepends=True)
        self.found: list[Mutant] = []
        self.names: list[str] = []

    def text(self, span: Span) -> str:
        """The source between two places."""
        first, left, last, right = span
        whole = b"".join(self.lines[first - 1 : last])
        return whole[left : len(whole) - len(self.lines[last - 1]) + right].decode()

    def add(self, kind: str, span: Span, after: str) -> None:
        """Notes what would be taken out."""
        name = ".".join(self.names)
        self.found.append(Mutant(self.file, span, kind, name, span[0], self.text(span), after))

    def visit(self, node: ast.AST) -> None:
        """Visits a piece of syntax, with the steps that follow each other in it."""
        named = isinstance(node, ast.FunctionDef | ast.ClassDef)
        self.names += [node.name] if named else []
        for body in (getattr(node, name, None) for name in ("body", "orelse", "finalbody")):
            for one, two in pairwise(body if isinstance(body, list) else ()):
                self._ordered(one, two)
        super().visit(node)
        del self.names[len(self.names) - named :]

    def visit_Expr(self, node: ast.Expr) -> None:
        """A sync, or a check that raises, is left out."""
        name = _callee(node)
        if name in SYNCS | CHECKS:
            self.add("sync" if name in SYNCS else "check", _span(node), "pass")

    def visit_If(self, node: ast.If) -> None:
        """A test of what tells damage or another owner never finds any."""
        for body, never in ((node.body, "False"), (node.orelse, "True")):
            if _refuses(body):
                self._never(node.test, never)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        """Likewise, where it decides between a value and none."""
        for value, never in ((node.body, "False"), (node.orelse, "True")):
            if _is_nothing(value):
                self._never(node.test, never)
        self.generic_visit(node)

    def _never(self, test: ast.expr, never: str) -> None:
        text = self.text(_span(test))
        if any(clue in text.lower() for clue in CLUES):
            lines = "\n" * text.count("\n")
            self.add("test", _span(test), f"({never}{lines})" if lines else never)

    def _ordered(self, one: ast.stmt, two: ast.stmt) -> None:
        """What notes that a step is done is done before it."""
        if _callee(one) not in SYNCS | CHECKS | WRITES or not _notes(two):
            return
        first, second = _span(one), _span(two)
        between = self.text((*first[2:], *second[:2]))
        self.add("order", (*first[:2], *second[2:]), self.text(second) + between + self.text(first))


def _span(node: ast.expr | ast.stmt) -> Span:
    return node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0


def _callee(step: ast.stmt) -> str:
    """What is called for its effect alone, by its last name."""
    call = step.value if isinstance(step, ast.Expr) else None
    if not isinstance(call, ast.Call):
        return ""
    return ast.unparse(call.func).rpartition(".")[2]


def _refuses(body: list[ast.stmt]) -> bool:
    """Whether a branch ends with an error, or with the word that there is nothing."""
    last = body[-1] if body else None
    if isinstance(last, ast.Return):
        return last.value is not None and _is_nothing(last.value)
    return isinstance(last, ast.Raise | ast.Continue | ast.Break)


def _is_nothing(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and not value.value


def _notes(step: ast.stmt) -> bool:
    """Whether a step remembers something in the object."""
    targets = step.targets if isinstance(step, ast.Assign) else []
    if isinstance(step, ast.AugAssign):
        targets = [step.target]
    targets = [each for t in targets for each in (t.elts if isinstance(t, ast.Tuple) else [t])]
    return any(isinstance(each, ast.Attribute | ast.Subscript) for each in targets)


def names(every: list[Mutant]) -> dict[str, Mutant]:
    """What safeguards are called in the list of what is known: no lines, which move."""
    seen: Counter[str] = Counter()
    found = {}
    for m in every:
        name = f"{m.file} {m.function} {m.kind}: {' '.join(m.before.split())}"
        seen[name] += 1
        found[name if seen[name] == 1 else f"{name} ({seen[name]})"] = m
    return found


def known() -> dict[str, dict[str, str]]:
    """Which test missed each safeguard the last time, or why nobody can."""
    found: dict[str, dict[str, str]] = json.loads(KNOWN.read_text()) if KNOWN.exists() else {}
    return found


def asked(mutant: Mutant, missed_by: str | None, cover: Cover | None) -> Iterator[list[str]]:
    """The tests to ask, one group after the other."""
    if missed_by and f"def {missed_by.rpartition('::')[2]}(" in _text(missed_by):
        yield [missed_by]
    run, others = cover.of(mutant, fault_tests()) if cover else ([], [])

    def rank(test: Test) -> float:
        return -test.lines[mutant.file].bit_count() / test.size / (START_S + test.seconds)

    ranked = deque(sorted(run, key=rank) + sorted(others, key=rank))
    for most in TESTS_S:
        tests, spent = [], 0.0
        while ranked and spent + ranked[0].seconds <= most:
            spent += ranked[0].seconds
            tests.append(ranked.popleft().name)
        yield tests
    if not cover:
        yield [str(path.relative_to(TOP)) for path in fault_tests()]
    yield from map(list, LAST)


def _text(test: str) -> str:
    path = TOP / test.partition("::")[0]
    return path.read_text() if path.exists() else ""


def judged(mutant: Mutant, groups: Iterator[list[str]], copies: Copies) -> str:
    """Runs the tests until one fails; says which."""
    for tests in filter(None, groups):
        marks = () if "::" in tests[0] else ("-m", MARKS)
        with copies.one() as copy:
            with copy.changed(mutant):
                ended = copy.ask(tests, LIMIT_S, *marks, NOSYNC_SEEDS=LIVES)
            failed = copy.failed()
        if ended is None:
            return f"missed: {tests[0]} takes too long"
        if ended == 1:
            return f"missed: {failed or tests[0]}"
        if ended:
            return f"survived, as no test ran (pytest: {ended})"
    return "survived"


def results(
    chosen: dict[str, Mutant], cover: Cover | None, copies: Copies
) -> Iterator[tuple[str, str]]:
    """Judges some safeguards, says what became of each."""
    before = known()
    for name, m in chosen.items():
        groups = asked(m, before.get(name, {}).get("missed by"), cover)
        yield name, judged(m, groups, copies)


def fault_tests() -> list[Path]:
    """The test files that know of failures, and run in one process."""
    paths = (path for room in ASKED for path in sorted((TOP / "tests" / room).rglob("test_*.py")))
    return [p for p in paths if "mark.fault" in p.read_text() and p.stem not in mutate.LEFT_OUT]


def remember(found: dict[str, str], every: dict[str, Mutant]) -> None:
    """Notes which tests missed which safeguards, forgets what is not there any more."""
    now = {name: each for name, each in known().items() if name in every}
    for name, result in found.items():
        if "::" in result:
            now[name] = {"missed by": result.removeprefix("missed: ")}
    order = {name: now[name] for name in every if name in now}
    KNOWN.write_text(json.dumps(order, indent=1, ensure_ascii=False) + "\n")


def main() -> int:
    """Runs the command; 1 if a safeguard can be taken out and no test notices."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, help="so many, drawn by the seed; else all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--file", help="of files whose path contains this only")
    parser.add_argument("--list", action="store_true", help="says what would be taken out")
    parser.add_argument("--new", action="store_true", help="those alone that no test is known for")
    args = parser.parse_args()
    every = names(everything())
    equal = {name for name, each in known().items() if "equivalent" in each}
    chosen = {n: m for n, m in every.items() if not args.file or args.file in m.file}
    if args.sample:
        few = drawn(list(chosen.values()), args.sample, args.seed)
        chosen = {name: m for name, m in chosen.items() if m in few}
    if args.new:
        chosen = {name: m for name, m in chosen.items() if name not in known()}
    if args.list:
        for m in chosen.values():
            print(f"{m.file}:{m.span[0]} {m.function}  {m.change}")
        print(len(chosen), "safeguards")
        return 0
    chosen = {name: m for name, m in chosen.items() if name not in equal}
    found = {}
    with Copies(TOP, mutate.HOME, 1) as copies:
        cover = Cover(TOP, mutate.HOME / "cover", copies, LOOK_S)
        for name, result in results(chosen, cover, copies):
            m = chosen[name]
            print(f"{m.file}:{m.span[0]} {m.function}  {m.change}: {result}", flush=True)
            found[name] = result
            remember(found, every)
    left = [name for name, result in found.items() if result.startswith("survived")]
    print(f"\n{len(found) - len(left)} of {len(found)} safeguards are missed when they are gone")
    print(*left, sep="\n")
    return 1 if left else 0


if __name__ == "__main__":
    began = time.monotonic()
    code = main()
    print(f"{time.monotonic() - began:.0f} s")
    sys.exit(code)
