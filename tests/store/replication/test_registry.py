"""The registry of replicas: a file beside the key."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from nosync_nb.files.filesystem import Files
from nosync_nb.store.replication import config

LOG_ID = bytes(range(16))


@pytest.fixture
def others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Folders of logs that have replicas; the file that says so is this test's own."""
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "own" / "key"))
    folders = [str(tmp_path / f"log{i}") for i in range(30)]
    for folder in folders:
        note(folder)
    return folders


def note(folder: str) -> None:
    asked = config.checked_config([f"file://{folder}-copy"], None, log=folder)
    config.register_replicas(Files(), folder, LOG_ID, asked)


def calls(run: Any) -> int:
    """How many functions of ours a call runs."""
    count = 0

    def seen(frame: Any, event: str, _: Any) -> None:
        nonlocal count
        count += event == "call" and "nosync_nb" in frame.f_code.co_filename

    sys.setprofile(seen)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


def test_cost_without_replicas_is_independent_of_other_logs(
    others: list[str], tmp_path: Path
) -> None:
    def opened() -> None:
        config.register_replicas(Files(), str(tmp_path / "plain"), LOG_ID, config.ReplicaConfig())

    many = calls(opened)
    for folder in others[1:]:
        assert config.unregister_replicas(Files(), folder)
    assert calls(opened) == many


def test_cost_with_replicas_is_independent_of_other_logs(others: list[str], tmp_path: Path) -> None:
    asked = config.checked_config([f"file://{others[0]}-copy"], None, log=others[0])

    def opened() -> None:
        config.register_replicas(Files(), others[0], LOG_ID, asked)

    many = calls(opened)
    for folder in others[1:]:
        assert config.unregister_replicas(Files(), folder)
    assert calls(opened) == many
    assert config.registered_replicas(Files(), others[0]) == (
        [asked.replicas[0].url + f"#{LOG_ID.hex()}"],
        1,
    )


def test_invalid_entry_affects_only_its_log(others: list[str]) -> None:
    path = Path(config.registry_path())
    known = json.loads(path.read_text())
    said: Any
    for number, said in enumerate(
        ([["ftp://x"], 1], [["file:///x"], 5], [["file:///x"]], 7, None, [7, 1], [[7], 1], {})
    ):
        known[others[number]] = said
    path.write_text(json.dumps(known))
    parent = os.path.dirname(others[0])
    asked = [config.registered_replicas(Files(), folder) for folder in others]
    assert [each is None for each in asked] == [True] * 8 + [False] * 22
    assert config.is_log_gone(Files(), parent) == others[8:]
    note(others[0])
    assert config.registered_replicas(Files(), others[0]) is not None


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "[" * 10_000])
def test_invalid_registry_is_ignored_and_rewritten(others: list[str], text: str) -> None:
    Path(config.registry_path()).write_text(text)
    assert config.registered_replicas(Files(), others[0]) is None
    assert not config.is_log_gone(Files(), os.path.dirname(others[0]))
    note(others[1])
    assert config.registered_replicas(Files(), others[0]) is None
    assert config.registered_replicas(Files(), others[1]) is not None


def test_truncated_registry_is_rewritten(others: list[str]) -> None:
    path = Path(config.registry_path())
    path.write_bytes(path.read_bytes()[:-20])
    note(others[0])
    assert config.registered_replicas(Files(), others[0]) is not None


def test_unregister_removes_only_the_exact_path(others: list[str]) -> None:
    note(f"{others[0]}/inner")
    assert config.unregister_replicas(Files(), others[0])
    assert not config.unregister_replicas(Files(), others[0])
    assert config.registered_replicas(Files(), others[0]) is None
    kept = config.registered_replicas(Files(), f"{others[0]}/inner")
    assert kept is not None
    assert kept[1] == 1


def test_registry_writable_by_others_is_ignored(others: list[str]) -> None:
    os.chmod(config.registry_path(), 0o622)
    assert not config.unregister_replicas(Files(), others[0])
    assert config.registered_replicas(Files(), others[0]) is None
