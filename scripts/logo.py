"""Draws the kernel's logo: an input that has changed, one that has not, and a stage of both.

`python scripts/logo.py` writes the picture for launchers that take SVG, and two in dots for those
that do not. All three are drawn from the same few numbers, in a square of 64 units.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).resolve().parents[1] / "magics" / "nosync" / "logos"
UNITS = 64
SIZES = (32, 64)
_GROUND, _STILL, _CHANGED = "#17405f", "#9ec5e0", "#ffb13b"
_CORNER, _LINE, _NODE = 13.0, 3.5, 7.5
_EDGES = (((16, 46), (40, 32), _STILL), ((16, 18), (40, 32), _CHANGED))
_NODES = ((16, 46, _STILL), (16, 18, _CHANGED))
_ROWS = ((35, 18, _STILL), (35, 28, _CHANGED), (35, 38, _STILL))
_ROW = (20, 8)
_FINE = 8
"""Dots that are averaged to one, in each direction, so that edges are smooth."""


def svg() -> str:
    """The picture as SVG."""
    lines = [
        f'<path d="M{x} {y}L{to_x} {to_y}" stroke="{colour}" stroke-width="{_LINE}"/>'
        for (x, y), (to_x, to_y), colour in _EDGES
    ]
    nodes = [f'<circle cx="{x}" cy="{y}" r="{_NODE}" fill="{colour}"/>' for x, y, colour in _NODES]
    width, height = _ROW
    rows = [
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{colour}"/>'
        for x, y, colour in _ROWS
    ]
    ground = f'<rect width="{UNITS}" height="{UNITS}" rx="{_CORNER}" fill="{_GROUND}"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {UNITS} {UNITS}">'
    return "\n".join([head, ground, *lines, *nodes, *rows, "</svg>"]) + "\n"


def dots(size: int) -> np.ndarray:
    """The picture in `size` x `size` dots: red, green, blue, opacity."""
    steps = (np.arange(size * _FINE) + 0.5) * UNITS / (size * _FINE)
    x, y = np.meshgrid(steps, steps)
    fine = np.zeros((*x.shape, 4))
    for shape, colour in _shapes(x, y):
        fine[shape] = (*bytes.fromhex(colour[1:]), 255)
    blocks = fine.reshape(size, _FINE, size, _FINE, 4)
    opacity = blocks[..., 3:].mean(axis=(1, 3))
    colours = (blocks[..., :3] * blocks[..., 3:]).mean(axis=(1, 3)) / np.maximum(opacity, 1)
    return np.concatenate([colours, opacity], axis=-1).round().astype(np.uint8)


def _shapes(x: np.ndarray, y: np.ndarray) -> Iterator[tuple[np.ndarray, str]]:
    """Which dots are in each shape, the lowest first, and its colour."""
    middle = UNITS / 2
    beyond = [np.maximum(abs(each - middle) - (middle - _CORNER), 0) for each in (x, y)]
    yield np.hypot(*beyond) <= _CORNER, _GROUND
    for start, end, colour in _EDGES:
        along = np.subtract(end, start) / np.hypot(*np.subtract(end, start))
        there = (x - start[0]) * along[0] + (y - start[1]) * along[1]
        aside = (x - start[0]) * along[1] - (y - start[1]) * along[0]
        inside = (there >= 0) & (there <= np.hypot(*np.subtract(end, start)))
        yield inside & (abs(aside) <= _LINE / 2), colour
    for node_x, node_y, colour in _NODES:
        yield np.hypot(x - node_x, y - node_y) <= _NODE, colour
    for left, top, colour in _ROWS:
        yield (x >= left) & (x < left + _ROW[0]) & (y >= top) & (y < top + _ROW[1]), colour


def png(picture: np.ndarray) -> bytes:
    """A picture in dots as a PNG file."""
    height, width, _ = picture.shape
    rows = b"".join(b"\0" + row.tobytes() for row in picture)
    head = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_part(kind, data) for kind, data in parts)


def _part(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def main() -> None:
    """Writes the files that `nosync install` puts beside the kernel."""
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "logo-svg.svg").write_text(svg())
    for size in SIZES:
        (FOLDER / f"logo-{size}x{size}.png").write_bytes(png(dots(size)))


if __name__ == "__main__":
    main()
