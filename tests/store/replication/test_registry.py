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
def other_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Registers logs with replicas in a registry of this test."""
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "own" / "key"))
    folders = [str(tmp_path / f"log{i}") for i in range(30)]
    for folder in folders:
        register(folder)
    return folders


def register(folder: str) -> None:
    asked = config.checked_config([f"file://{folder}-copy"], None, log=folder)
    config.register_replicas(Files(), folder, LOG_ID, asked)


def calls(run: Any) -> int:
    """The number of our functions that a call runs."""
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


@pytest.mark.parametrize("replicated", [False, True])
def test_cost_is_independent_of_other_logs(
    other_logs: list[str], tmp_path: Path, replicated: bool
) -> None:
    path, asked = str(tmp_path / "plain"), config.ReplicaConfig()
    if replicated:
        path = other_logs[0]
        asked = config.checked_config([f"file://{path}-copy"], None, log=path)

    def register_own() -> None:
        config.register_replicas(Files(), path, LOG_ID, asked)

    many = calls(register_own)
    for folder in other_logs[1:]:
        assert config.unregister_replicas(Files(), folder)
    assert calls(register_own) == many
    known = ([f"file://{path}-copy#{LOG_ID.hex()}"], 1) if replicated else None
    assert config.registered_replicas(Files(), path) == known


def test_invalid_entry_affects_only_its_log(other_logs: list[str]) -> None:
    path = Path(config.registry_path())
    known = json.loads(path.read_text())
    entry: Any
    for number, entry in enumerate(
        ([["ftp://x"], 1], [["file:///x"], 5], [["file:///x"]], 7, None, [7, 1], [[7], 1], {})
    ):
        known[other_logs[number]] = entry
    path.write_text(json.dumps(known))
    parent = os.path.dirname(other_logs[0])
    asked = [config.registered_replicas(Files(), folder) for folder in other_logs]
    assert [each is None for each in asked] == [True] * 8 + [False] * 22
    assert config.is_log_gone(Files(), parent) == other_logs[8:]
    register(other_logs[0])
    assert config.registered_replicas(Files(), other_logs[0]) is not None


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "[" * 10_000])
def test_invalid_registry_is_ignored_and_rewritten(other_logs: list[str], text: str) -> None:
    Path(config.registry_path()).write_text(text)
    assert config.registered_replicas(Files(), other_logs[0]) is None
    assert not config.is_log_gone(Files(), os.path.dirname(other_logs[0]))
    register(other_logs[1])
    assert config.registered_replicas(Files(), other_logs[0]) is None
    assert config.registered_replicas(Files(), other_logs[1]) is not None


def test_truncated_registry_is_rewritten(other_logs: list[str]) -> None:
    path = Path(config.registry_path())
    path.write_bytes(path.read_bytes()[:-20])
    register(other_logs[0])
    assert config.registered_replicas(Files(), other_logs[0]) is not None


def test_unregister_removes_only_the_exact_path(other_logs: list[str]) -> None:
    register(f"{other_logs[0]}/inner")
    assert config.unregister_replicas(Files(), other_logs[0])
    assert not config.unregister_replicas(Files(), other_logs[0])
    assert config.registered_replicas(Files(), other_logs[0]) is None
    kept = config.registered_replicas(Files(), f"{other_logs[0]}/inner")
    assert kept is not None
    assert kept[1] == 1


def test_registry_writable_by_others_is_ignored(other_logs: list[str]) -> None:
    os.chmod(config.registry_path(), 0o622)
    assert not config.unregister_replicas(Files(), other_logs[0])
    assert config.registered_replicas(Files(), other_logs[0]) is None
