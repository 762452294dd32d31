"""Safeguards of the log: a test fails if one of them is taken out."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import mutate
import mutate_faults
from copies import Copies

FAULTS = Path(__file__).resolve().parents[1] / "FAULTS.md"
SAMPLE = 8
SOURCE = """
def write(self, file, data, term):
    file.append(data)
    file.sync()
    self.durable = len(data)
    if zlib.crc32(data) != self.crc:
        raise ValueError
    if self.empty:
        return None
    self.check(term)
    return self.word if self.word == self.inverse else 0
"""
TAKEN_OUT = [
    ("order", 4, "self.durable = len(data)\n    file.sync()"),
    ("sync", 4, "pass"),
    ("test", 6, "False"),
    ("check", 10, "pass"),
    ("test", 11, "True"),
]


def test_safeguards_are_found_in_syntax_and_removed_one_by_one() -> None:
    found = mutate_faults.safeguards(SOURCE, "nosync_nb/store/log/x.py")
    assert [(m.kind, m.span[0], m.after) for m in found] == TAKEN_OUT
    for each in found:
        compile(each.apply(SOURCE), "mutant", "exec")
        assert each.apply(SOURCE) != SOURCE


def test_storage_has_safeguards_and_seed_draws_some() -> None:
    every = mutate_faults.everything()
    assert {m.kind for m in every} == {"sync", "check", "test", "order"}
    assert all(any(m.file.startswith(place) for m in every) for place in mutate_faults.PLACES)
    for each in every:
        compile(each.apply(mutate.text_of(each.file)), each.file, "exec")
    few = mutate_faults.drawn(every, 3, 1)
    assert mutate_faults.drawn(every, 5, 1)[:3] == few != mutate_faults.drawn(every, 3, 2)


def test_dispensable_safeguards_exist_with_reason() -> None:
    every, known = mutate_faults.names(mutate_faults.everything()), mutate_faults.known()
    assert all(list(each) in (["missed by"], ["equivalent"]) for each in known.values())
    equivalent = {n: each["equivalent"] for n, each in known.items() if "equivalent" in each}
    assert equivalent.keys() <= every.keys()
    assert all(len(why.split()) > 3 for why in equivalent.values())
    assert len(equivalent) < len(every) / 20


def test_all_fault_tests_run_except_listed_ones() -> None:
    named = re.findall(r"^- `(\S+\.py)::", FAULTS.read_text(), re.MULTILINE)
    rooms = tuple(f"{room}/" for room in mutate_faults.ASKED)
    wanted = {name for name in named if name.startswith(rooms)}
    asked = {str(path.relative_to(FAULTS.parent)) for path in mutate_faults.fault_tests()}
    assert {name for name in wanted - asked if Path(name).stem not in mutate.LEFT_OUT} == set()
    assert all((mutate.TOP / name).exists() for last in mutate_faults.LAST for name in last)


@pytest.mark.slow
@pytest.mark.timeout(1800)  # one without a known test runs many
def test_removed_safeguards_are_missed_by_tests(tmp_path: Path) -> None:
    every, known = mutate_faults.names(mutate_faults.everything()), mutate_faults.known()
    few = mutate_faults.drawn(list(every.values()), SAMPLE, 1)
    chosen = {
        name: m
        for name, m in every.items()
        if name not in known or (m in few and "missed by" in known[name])
    }
    with Copies(mutate.TOP, tmp_path, 1) as copies:
        found = dict(mutate_faults.results(chosen, None, copies))
    assert [name for name, result in found.items() if not result.startswith("missed")] == []
