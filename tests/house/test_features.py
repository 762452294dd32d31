"""The index of features: `FEATURES.md` lists every test module once, with its promise."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
from feature_index import PAGE, features, page

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import sizes

FEATURES = features()


@pytest.mark.parametrize("path", FEATURES)
def test_module_names_its_feature_in_first_line(path: str) -> None:
    name, promise = FEATURES[path]
    assert 3 < len(name) <= 90, "write `Feature: what holds.` as the first line of the docstring"
    assert promise or "," in name or " " in name


def test_feature_has_one_test_module() -> None:
    names = Counter(name.lower() for name, _ in FEATURES.values())
    assert [name for name, count in names.items() if count > 1] == []


def test_feature_index_is_current() -> None:
    assert PAGE.read_text() == page(), "run `python tests/support/feature_index.py`"


def test_sizes_are_reported_by_folder() -> None:
    report = sizes.report()
    assert "nosync_nb/session" in report
    assert report.splitlines()[-1].startswith("tests")
