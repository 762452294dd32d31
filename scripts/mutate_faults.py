"""Takes one safeguard at a time out of the log and its replicas: do the fault tests go red?

    python scripts/mutate_faults.py [--sample 3] [--seed 1] [--file PART] [--list]

Safeguards are read off the syntax tree of `nosync_nb/files/disk.py`, `nosync_nb/store/log` and
`nosync_nb/store/replicas`, none is picked by hand: each call that syncs a file or a folder, each
test of a checksum, a digest, a generation or a term, and each pair of steps of which the first
must be done before the second is noted. The tests marked `fault` of the store and of sessions are
asked, those of the quickest files first, then simulated lives. What survives is listed,
and of the others the test that missed them.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import mutate
from covering import digest
from mutants import Mutant, Span

TOP = mutate.TOP
PLACES = ("nosync_nb/files/disk.py", "nosync_nb/store/log", "nosync_nb/store/replicas")
SYNCS = {"sync", "sync_folder", "_settle", "fsync", "fdatasync", "note_durable"}
CHECKS = {"check", "_check", "check_format", "_later", "holds", "verify", "compare_digest"}
WRITES = {"append", "write_at", "rename", "replace", "store", "promise"}
CLUES = ("crc", "digest", "checksum", "inverse", "generation", "term", "incarnation", "token")
CLUES += ("promise", "acknowledged", "stamp", "magic", "log_id", "deleted", "nlink", "before")
TESTS = (
    ("tests/store/test_log.py", "tests/store/test_log_errors.py", "tests/store/test_replicas.py"),
    ("tests/store/test_log_crash.py", "tests/store/test_replicas_simulated.py", "tests/files"),
    ("tests/store", "tests/properties/test_power.py", "tests/session/test_replication.py"),
)
"""Which tests are asked, one group after the other; a mutant lives on if none of them fails."""
LIMIT_S = 900.0
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
        text = self.text(_span(test)).lower()
        if any(clue in text for clue in CLUES):
            self.add("test", _span(test), never)

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
    return any(isinstance(t, ast.Attribute | ast.Subscript | ast.Tuple) for t in targets)


def judged(mutant: Mutant, place: Path) -> str:
    """Runs the tests until one fails."""
    source = mutate.text_of(mutant.file)
    try:
        (place / mutant.file).write_text(mutant.apply(source))
        for group in TESTS:
            ended = mutate.run(place, [*group], LIMIT_S, "-m", MARKS, NOSYNC_SEEDS=LIVES)
            if ended is None:
                return "timed out"
            if ended == 1:
                said = re.search(r"^FAILED (\S+)", (place / "out").read_text(), flags=re.M)
                return f"killed by {said[1]}" if said else "killed"
            if ended:
                return f"survived, as no test ran (pytest: {ended})"
        return "survived"
    finally:
        (place / mutant.file).write_text(source)


def survivors(chosen: list[Mutant]) -> list[str]:
    """Judges some safeguards, says what became of each, returns those that nobody missed."""
    found = []
    with mutate.Places(1) as places:
        place = places.free.get()
        for m in chosen:
            result = judged(m, place)
            line = f"{m.file}:{m.span[0]} {m.function}  {m.change}: {result}"
            print(line, flush=True)
            found += [line] if result.startswith("survived") else []
    return found


def main() -> int:
    """Runs the command; 1 if a safeguard can be taken out and no test notices."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, help="so many, drawn by the seed; else all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--file", help="of files whose path contains this only")
    parser.add_argument("--list", action="store_true", help="says what would be taken out")
    args = parser.parse_args()
    every = [m for m in everything() if not args.file or args.file in m.file]
    if args.sample:
        every = drawn(every, args.sample, args.seed)
    if args.list:
        for m in every:
            print(f"{m.file}:{m.span[0]} {m.function}  {m.change}")
        print(len(every), "safeguards")
        return 0
    left = survivors(every)
    print(f"\n{len(every) - len(left)} of {len(every)} safeguards are missed when they are gone")
    print(*left, sep="\n")
    return 1 if left else 0


if __name__ == "__main__":
    began = time.monotonic()
    code = main()
    print(f"{time.monotonic() - began:.0f} s")
    sys.exit(code)
