"""Scripts of the views: their own tests pass, and they are plain, offline and small."""

from __future__ import annotations

import os
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest
from playwright._impl._driver import compute_driver_executable

STATIC = files("nosync_widgets") / "static"
SCRIPTS = Path(__file__).parents[1] / "support" / "jupyter"
NAMES = sorted(path.name.partition(".")[0] for path in SCRIPTS.glob("*.test.mjs"))


@pytest.mark.parametrize("name", NAMES)
def test_script_passes_its_own_tests(name: str) -> None:
    node, _ = compute_driver_executable()  # Playwright brings one
    done = subprocess.run(
        [node, "--test", str(SCRIPTS / f"{name}.test.mjs")],
        env={**os.environ, "VIEW_JS": str(STATIC / f"{name}.js")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout


def test_script_and_style_are_plain_offline_and_small() -> None:
    sources = {path.name: path.read_text() for path in STATIC.iterdir() if path.is_file()}
    assert {f"{name}.js" for name in NAMES} <= sources.keys()
    for name, source in sources.items():
        for word in ("innerHTML", "http", "import "):
            assert word not in source.replace("http://www.w3.org/2000/svg", ""), name
        assert len(source.splitlines()) <= 400, name
