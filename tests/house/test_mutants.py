"""Mutants: each kind is made in one place, keeps line numbers, and leaves irrelevant code alone."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import copies
import covering
import mutants
import mutate
from copies import Copies, Copy
from covering import Cover

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


def test_each_mutation_changes_its_place_only() -> None:
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


def test_lines_with_non_ascii_signs_are_mutated_at_right_column() -> None:
    (one, two) = mutants.of_source("x = '−…' if a < b else 'ß'\n", "nosync_nb/x.py")
    assert one.apply("x = '−…' if a < b else 'ß'\n") == "x = '−…' if a >= b else 'ß'\n"
    assert two.apply("x = '−…' if a < b else 'ß'\n") == "x = '−…' if a <= b else 'ß'\n"


def test_sample_is_balanced_and_extends_deterministically(tmp_path: Path) -> None:
    (tmp_path / "nosync_nb").mkdir()
    (tmp_path / "nosync_nb" / "x.py").write_text(SOURCE)
    every = mutants.mutants(tmp_path)
    short, long = (mutants.draw(tmp_path, every, n, 3) for n in (7, 12))
    assert {m.kind for m in short} == set(mutants.KINDS)
    assert long[:7] == short
    assert mutants.draw(tmp_path, every, 7, 3) == short
    assert mutants.draw(tmp_path, every, 7, 4) != short
    assert len(mutants.draw(tmp_path, every, 1000, 1)) == len(every)


def test_rooms_are_those_of_engine() -> None:
    top = Path(__file__).resolve().parents[2] / "nosync_nb"
    assert {path.name for path in top.iterdir() if (path / "__init__.py").exists()} == set(
        mutants.ROOMS
    )


def test_unrelated_change_leaves_sample(tmp_path: Path) -> None:
    (tmp_path / "nosync_nb").mkdir()
    (tmp_path / "nosync_nb" / "x.py").write_text(SOURCE)
    before = mutants.draw(tmp_path, mutants.mutants(tmp_path), 7, 3)
    (tmp_path / "nosync_nb" / "a.py").write_text("def other():\n    return 5\n")
    (tmp_path / "nosync_nb" / "x.py").write_text(f"NEW = 9\n{SOURCE}")
    after = mutants.draw(tmp_path, mutants.mutants(tmp_path), 7, 3)
    same = {m.change for m in before} & {m.change for m in after}
    assert len(same) >= 6  # of the constants, one of the new two may come first
    assert [m.span[0] + 1 for m in before if m.change in same] == [
        m.span[0] for m in after if m.change in same
    ]


MODULE = """def f(a, b):
    return a <= b


def g():
    return 1
"""
TESTS = """from nosync_nb.store.late_ones import f, g


def test_f() -> None:
    assert f(1, 1)


def test_g() -> None:
    assert g()


def test_that_fails_as_it_is() -> None:
    assert not g()
"""
(MUTANT,) = (
    m
    for m in mutants.of_source(MODULE, "nosync_nb/store/late_ones.py")
    if m.span[0] == 2 and m.kind == "comparison"
)


def test_survivor_is_retried_when_any_test_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutate, "TOP", tmp_path)
    module, test = tmp_path / MUTANT.file, tmp_path / "tests" / "room" / "test_it.py"
    for path in (module, test):
        path.parent.mkdir(parents=True)
        path.write_text("1")
    mutate.text_of.cache_clear()

    def known(files: int) -> mutate.Results:
        return mutate.Results(tmp_path / "results", test.parent, 1, files)

    for result, then in (("survived", None), ("killed", "killed"), ("timed out", "timed out")):
        test.write_text("1")
        known(1).add(MUTANT, result, "test_it")
        assert known(1).of(MUTANT) == known(9).of(MUTANT) == result
        test.write_text("2")
        assert known(1).of(MUTANT) == then
    known(1).add(MUTANT, "survived, but not all were asked", "")
    assert known(1).of(MUTANT) is not None
    assert known(2).of(MUTANT) is None
    mutate.text_of.cache_clear()


def test_files_that_name_mutated_code_run_first() -> None:
    texts = {
        Path("tests/rows/test_lines.py"): "import nosync_nb",
        Path("tests/store/test_late.py"): "from nosync_nb import Session",
        Path("tests/rows/test_more.py"): "from nosync_nb.store.late_ones import f",
    }
    assert mutate.ranked(MUTANT, texts, {}) == list(texts)[::-1]
    user = {Path("nosync_nb/rows/lines.py"): "from nosync_nb.store.late_ones import f"}
    assert mutate.ranked(MUTANT, dict(list(texts.items())[::2]), user) == list(texts)[::-2]
    texts[Path("tests/rows/test_any.py")] = "import nosync_nb"
    assert mutate.ranked(MUTANT, texts, user)[-1] == Path("tests/rows/test_any.py")
    groups = list(mutate.grouped(list(map(Path, map(str, range(30))))))
    assert [len(group) for group in groups] == [1, 4, 16, 9]


@pytest.fixture(scope="module")
def small_project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Copies]]:
    home = tmp_path_factory.mktemp("home")
    top = home / "top"
    (top / "nosync_nb" / "store").mkdir(parents=True)
    for package in ("nosync_nb", "nosync_nb/store"):
        (top / package / "__init__.py").touch()
    (top / MUTANT.file).write_text(MODULE)
    (top / "test_it.py").write_text(TESTS)
    subprocess.run(["git", "init", "-q"], cwd=top, check=True)
    with Copies(top, home, 1) as copies:
        yield top, copies


@pytest.fixture
def copy(small_project: tuple[Path, Copies]) -> Iterator[Copy]:
    with small_project[1].one() as copy:
        yield copy


def test_every_equivalent_mutant_exists() -> None:
    known = json.loads(mutate.EQUIVALENT.read_text())
    listed = {(e["function"], e["line"], e["before"], e["after"]) for e in known}
    functions = {function for function, *_ in listed}
    made = {
        (m.function, mutate.text_of(m.file).splitlines()[m.span[0] - 1].strip(), m.before, m.after)
        for m in mutants.mutants(mutate.TOP)
        if m.function in functions
    }
    assert listed - made == set()


def test_every_excluded_test_file_exists() -> None:
    stems = {path.stem for path in (mutate.TOP / "tests").rglob("test_*.py")}
    assert stems >= mutate.LEFT_OUT


def test_module_is_mutated_in_copy_temporarily(copy: Copy) -> None:
    tests = ["test_it.py::test_f", "test_it.py::test_g"]
    assert copy.ask(tests, 60) == 0
    with copy.changed(MUTANT):  # within one second
        assert copy.ask(tests, 60) == 1
        assert copy.failed() == "test_it.py::test_f"
    assert (copy.path / MUTANT.file).read_text() == MODULE


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes under /proc")
def test_run_kills_processes_of_its_tests(copy: Copy) -> None:
    (copy.path / "test_run.py").write_text(
        "import subprocess\n\n\ndef test_leaves_a_process() -> None:\n"
        "    left = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "    with open('left', 'w') as file:\n        file.write(str(left.pid))\n"
    )
    assert copy.ask(["test_run.py"], 60) == 0
    assert not Path("/proc", (copy.path / "left").read_text()).exists()


def test_run_with_too_much_cpu_time_is_stopped(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "START_S", 1)
    (copy.path / "test_run.py").write_text("def test_never_ends() -> None:\n    while True: pass\n")
    assert copy.ask(["test_run.py"], 0) is None


def test_coverage_maps_lines_to_tests_and_is_cached(small_project: tuple[Path, Copies]) -> None:
    top, copies = small_project
    tests = [top / "test_it.py"]
    for _ in range(2):
        found, others = Cover(top, top / "cover", copies, 60).of(MUTANT, tests)
        assert [test.name for test in found] == ["test_it.py::test_f"]
        assert [test.name for test in others] == ["test_it.py::test_g"]
        with copies.one() as copy:
            (copy.path / "test_it.py").write_text("raise RuntimeError('looked at again')\n")


def test_files_of_equal_name_are_distinct() -> None:
    top = Path(__file__).resolve().parents[1]
    files = sorted(top.rglob("test_*.py"))
    assert len({covering.result_of(top, file) for file in files}) == len(files)
