"""Mutants: each kind is made in one place and moves no line; what means nothing is left alone."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import mutants
import mutate

SOURCE = '''"""Text 1."""
LIMIT = 7
NARROW: int = 3


def f(a: int, b, c=2):
    """Says 1 < 2."""
    assert a < b
    if a <= b < c and (a or b) and not c:
        g(a, b)
        h(
            a,
            b,
        )
    elif a:
        raise ValueError(f"{a < 1}", g(a, b))
    return max(a, b) if a in c else [x for x in c if x is None and x]
'''
CHANGES = {
    "comparison: <=  ->  >": 9,
    "boundary: <=  ->  <": 9,
    "comparison: <  ->  >=": 9,
    "boundary: <  ->  <=": 9,
    "part: a <= b < c and (a or b) and not c  ->  ((a or b) and (not c))": 9,
    "part: a <= b < c and (a or b) and not c  ->  ((a <= b < c) and (not c))": 9,
    "part: a <= b < c and (a or b) and not c  ->  ((a <= b < c) and (a or b))": 9,
    "part: a or b  ->  (a)": 9,
    "part: a or b  ->  (b)": 9,
    "condition: a <= b < c and (a or b) and not c"
    "  ->  (not (a <= b < c and (a or b) and not c))": 9,
    "call: g(a, b)  ->  pass": 10,
    "arguments: a, b  ->  b, a": 10,
    "call: h( a, b, )  ->  pass": 11,
    "condition: a  ->  (not (a))": 15,
    "comparison: in  ->  not in": 17,
    "comparison: is  ->  is not": 17,
    "condition: x is None and x  ->  (not (x is None and x))": 17,
    "part: x is None and x  ->  (x)": 17,
    "part: x is None and x  ->  (x is None)": 17,
    "constant: 2  ->  3": 6,
    "constant: 2  ->  (1)": 6,
}


def test_every_kind_of_change_is_made_where_it_is_said_and_nothing_else() -> None:
    found = mutants.of_source(SOURCE, "nosync_nb/store/x.py")
    swapped = [m for m in found if m.kind == "arguments"]
    assert [m.span[0] for m in swapped] == [10, 12]
    assert {m.change: m.span[0] for m in found if m not in swapped[1:]} == CHANGES
    assert {m.kind for m in found} == set(mutants.KINDS)
    assert {m.room for m in found} == {"store"}
    for mutant in found:
        changed = mutant.apply(SOURCE)
        assert len(changed.splitlines()) == len(SOURCE.splitlines())
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(SOURCE))
        first, _, last, _ = mutant.span
        same = [n for n, line in enumerate(SOURCE.splitlines(), 1) if not first <= n <= last]
        lines = changed.splitlines()
        assert all(lines[n - 1] == SOURCE.splitlines()[n - 1] for n in same)


def test_lines_with_signs_beyond_ascii_are_changed_in_the_right_place() -> None:
    (one, two) = mutants.of_source("x = '−…' if a < b else 'ß'\n", "nosync_nb/x.py")
    assert one.apply("x = '−…' if a < b else 'ß'\n") == "x = '−…' if a >= b else 'ß'\n"
    assert two.apply("x = '−…' if a < b else 'ß'\n") == "x = '−…' if a <= b else 'ß'\n"


def test_a_draw_has_as_many_of_each_kind_and_a_longer_one_begins_alike(tmp_path: Path) -> None:
    (tmp_path / "nosync_nb").mkdir()
    (tmp_path / "nosync_nb" / "x.py").write_text(SOURCE)
    every = mutants.mutants(tmp_path)
    short, long = (mutants.draw(tmp_path, every, n, 3) for n in (7, 12))
    assert {m.kind for m in short} == set(mutants.KINDS)
    assert long[:7] == short
    assert mutants.draw(tmp_path, every, 7, 3) == short
    assert mutants.draw(tmp_path, every, 7, 4) != short
    assert len(mutants.draw(tmp_path, every, 1000, 1)) == len(every)


def test_the_rooms_are_those_of_the_engine() -> None:
    top = Path(__file__).resolve().parents[2] / "nosync_nb"
    assert {path.name for path in top.iterdir() if (path / "__init__.py").exists()} == set(
        mutants.ROOMS
    )


def test_a_survivor_is_tried_again_when_a_test_of_any_room_changes(tmp_path: Path) -> None:
    test = tmp_path / "tests" / "room" / "test_it.py"
    test.parent.mkdir(parents=True)
    test.write_text("1")
    before = mutate.Results(tmp_path, 1).tests
    assert mutate.Results(tmp_path, 1).tests == before
    test.write_text("2")
    assert mutate.Results(tmp_path, 1).tests != before


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes under /proc")
def test_a_run_ends_with_all_that_its_tests_have_started(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import subprocess\n\n\ndef test_leaves_a_process() -> None:\n"
        "    left = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "    with open('left', 'w') as file:\n        file.write(str(left.pid))\n"
    )
    assert mutate.run(tmp_path, ["test_it.py"], 60) == 0
    left = Path("/proc", (tmp_path / "left").read_text(), "stat")
    while left.exists() and left.read_text().rpartition(")")[2].split()[0] != "Z":
        pass  # killed, and not gone yet


def test_a_run_that_takes_too_much_of_the_processor_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_never_ends() -> None:\n    while True: pass\n")
    assert mutate.run(tmp_path, ["test_it.py"], 2) is None


def test_test_files_of_one_name_are_looked_at_apart() -> None:
    top = Path(__file__).resolve().parents[1]
    files = sorted(top.rglob("test_*.py"))
    assert len({mutate.result_of(top, file) for file in files}) == len(files)
