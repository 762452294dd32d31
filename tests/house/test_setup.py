"""Set-up: what it concludes from a machine, without changing the machine."""

from __future__ import annotations

import os
import re
import sys
import tomllib
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import steps
import system


def fake_java(home: Path, version: str, *, status: int = 0) -> Path:
    """Writes a program that acts as a Java."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\nexit {status}\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.21" 2026-10-20', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ("Error: could not find libjava.so", None),
    ],
)
def test_java_version_is_parsed_in_all_forms(text: str, version: int | None) -> None:
    assert system.java_version(text) == version


@pytest.mark.parametrize(
    ("homes", "chosen"),
    [
        ([("old", "1.8.0_402", 0), ("good", "17.0.9", 0)], "good"),
        ([("broken", "17.0.9", 1), ("good", "21.0.2", 0)], "good"),
        ([("newer", "25.0.1", 0), ("good", "17.0.9", 0)], "good"),
        ([("old", "11.0.2", 0), ("newer", "25.0.1", 0)], "newer"),
        ([("old", "11.0.2", 0)], None),
    ],
)
def test_java_must_run_and_be_recent(
    homes: list[tuple[str, str, int]],
    chosen: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    programs = [str(fake_java(tmp_path / n, v, status=s)) for n, v, s in homes]
    monkeypatch.setattr(system, "java_candidates", lambda: programs)
    assert system.find_java() == (None if chosen is None else str(tmp_path / chosen))


def test_java_home_is_checked_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = fake_java(tmp_path / "own", "17.0.9")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "own"))
    assert system.java_candidates()[0] == str(java)


def test_links_of_unpacked_package_point_to_its_files(tmp_path: Path) -> None:
    (tmp_path / "etc" / "java").mkdir(parents=True)
    (tmp_path / "etc" / "java" / "jvm.cfg").write_text("-server KNOWN\n")
    (tmp_path / "usr" / "lib").mkdir(parents=True)
    (tmp_path / "usr" / "lib" / "jvm.cfg").symlink_to("/etc/java/jvm.cfg")
    (tmp_path / "usr" / "lib" / "conf").symlink_to("/etc/java")
    (tmp_path / "usr" / "lib" / "absent").symlink_to("/nowhere/at/all")
    system.relink(tmp_path)
    assert (tmp_path / "usr" / "lib" / "jvm.cfg").read_text() == "-server KNOWN\n"
    assert (tmp_path / "usr" / "lib" / "conf" / "jvm.cfg").exists()
    assert os.readlink(tmp_path / "usr" / "lib" / "absent") == "/nowhere/at/all"


def test_failed_step_shows_end_of_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(steps, "LOG", steps.TOP / ".tools" / "test.log")
    steps.LOG.parent.mkdir(exist_ok=True)
    steps.LOG.write_bytes(b"")
    try:
        with (
            pytest.raises(steps.SetupError, match="failed twice: a step"),
            steps.Step("a step", tmp_path) as step,
        ):
            step.need(["sh", "-c", "echo the network is away; exit 1"])
    finally:
        steps.LOG.unlink()
    assert "the network is away" in capsys.readouterr().err


LOCKED = Path(__file__).resolve().parents[2] / "scripts" / "locked"


def pinned(name: str) -> dict[str, list[str]]:
    """The versions in a lock file, each with its number of hashes."""
    found: dict[str, list[str]] = {}
    for entry in re.split(r"\n(?=\S)", (LOCKED / f"{name}.txt").read_text()):
        line = re.match(r"([\w.-]+)(?:\[[\w,-]+\])?==(\S+)", entry)
        if line is not None:
            assert "--hash=sha256:" in entry, line[0]
            found.setdefault(canonicalize_name(line[1]), []).append(line[2])
    return found


def test_installed_packages_are_locked_as_required() -> None:
    project = tomllib.loads((LOCKED.parent.parent / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    locked = pinned("dev")
    installed = [extras[name] for name in ("spark", "cloud", "dev", "docs")]
    for text in [*project["dependencies"], *chain(*installed)]:
        asked = Requirement(text)
        versions = locked[canonicalize_name(asked.name)]
        assert all(asked.specifier.contains(version) for version in versions), text


def test_lock_files_agree() -> None:
    dev = pinned("dev")
    for name in ("build", "spark"):
        for package, versions in pinned(name).items():
            assert set(versions) <= set(dev.get(package, versions)), package
