"""The kernel that launchers show."""

from __future__ import annotations

import importlib.util
import json
import zlib
from pathlib import Path
from types import ModuleType

from nosync.kernelspec import LOGOS, install

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "logo.py"


def drawn() -> ModuleType:
    """The script that draws the pictures."""
    spec = importlib.util.spec_from_file_location("logo", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def unpacked(png: bytes) -> tuple[bytes, bytes]:
    """The head and the dots of a PNG: releases of zlib pack the same dots differently."""
    start = png.index(b"IDAT") + 4
    return png[16:29], zlib.decompressobj().decompress(png[start:])


def test_the_kernel_is_installed_with_its_pictures(tmp_path: Path) -> None:
    folder = Path(install(prefix=str(tmp_path)))
    assert json.loads((folder / "kernel.json").read_text())["display_name"] == "Python 3 (NoSync)"
    names = {"logo-32x32.png", "logo-64x64.png", "logo-svg.svg"}  # as servers look for them
    assert names == {path.name for path in folder.iterdir()} - {"kernel.json"}
    for name in names:
        assert (folder / name).read_bytes() == (LOGOS / name).read_bytes()


def test_the_pictures_are_what_the_script_draws() -> None:
    logo = drawn()
    assert logo.FOLDER == LOGOS
    assert (LOGOS / "logo-svg.svg").read_text() == logo.svg()
    for size in logo.SIZES:
        kept = (LOGOS / f"logo-{size}x{size}.png").read_bytes()
        assert len(kept) < 2000
        assert unpacked(kept) == unpacked(logo.png(logo.dots(size)))
