"""The installed kernel: its files and logos."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from nosync.kernelspec import LOGOS, install


def test_kernelspec_is_installed_with_logos(tmp_path: Path) -> None:
    folder = Path(install(prefix=str(tmp_path)))
    assert json.loads((folder / "kernel.json").read_text())["display_name"] == "Python 3 (NoSync)"
    names = {"logo-32x32.png", "logo-64x64.png", "logo-svg.svg"}  # as servers look for them
    assert names == {path.name for path in folder.iterdir()} - {"kernel.json"}
    for name in names:
        assert (folder / name).read_bytes() == (LOGOS / name).read_bytes()


def test_logos_have_sizes_in_their_names() -> None:
    for size in (32, 64):
        picture = (LOGOS / f"logo-{size}x{size}.png").read_bytes()
        assert struct.unpack(">II", picture[16:24]) == (size, size)
        assert len(picture) < 2000
