"""Writes the output of the code on pages: `python tests/support/page_output.py [PAGE ...]`.

It runs README and the pages as `tests/notebook/test_pages.py` does, and replaces the `text` fence
after a code fence by the output. A code fence without a `text` fence shows no output.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests" / "notebook"))
OUTPUT = re.compile(r"\n\n```text\n.*?```", re.S)
NOISE = re.compile(
    r"^\d+ Spark jobs?, .* tasks?$|^first run of .*$|^epochs \d+ to \d+ are committed$|^decoding .*"
)
TWICE = re.compile(r"^(\S+ at epoch \d+)(: .*\n(?:.*\n)*?)\1\n(?:.*\n?)*", re.M)
"""A grid as text, followed by the same text from its widget."""


def lines(output: str, folder: str) -> list[str]:
    """Returns the lines of an output, without progress; paths are relative to the folder."""
    once = TWICE.sub(r"\1\2", output.rstrip())
    shown = once.replace(f"{folder}/", "").splitlines()
    return [line.rstrip() for line in shown if not NOISE.match(line)]


def refresh(page: Path) -> None:
    """Runs a page and writes its outputs into it."""
    from test_pages import FENCE, NEED_SPARK, follow

    text, written, position = page.read_text(), "", 0
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        if page.stem not in NEED_SPARK:
            patch.setenv("JAVA_HOME", "/none")
        fences = FENCE.finditer(text)
        for (source, status, output), fence in zip(
            follow(page, Path(folder), patch), fences, strict=True
        ):
            if status != "ok":
                raise SystemExit(f"{page.name}: {source}\n{output}")
            written += text[position : fence.end()]
            position = fence.end()
            previous = OUTPUT.match(text, position)
            if previous:
                position = previous.end()
                written += "\n\n```text\n" + "\n".join([*lines(output, folder), "```"])
    page.write_text(written + text[position:])


if __name__ == "__main__":
    from test_pages import PAGES

    for each in [Path(name) for name in sys.argv[1:]] or [TOP / "README.md", *PAGES]:
        refresh(each)
