"""The index of features: which test module holds which feature; writes `tests/FEATURES.md`.

The first line of a test module's docstring is `Feature: what holds`. A feature has one module, so
its name is unique. `python tests/support/feature_index.py` writes the index from these lines.
"""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
PAGE = TESTS / "FEATURES.md"

HEADER = """# Features, and the test module that holds each

The lines are the first lines of the test modules: `python tests/support/feature_index.py` writes
this page, and a test compares it. [FAULTS.md](FAULTS.md) lists what may fail. Random programs and
simulated lives in `properties` and `store/replication` hold several features at once.
"""


def features() -> dict[str, tuple[str, str]]:
    found = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        text = ast.get_docstring(ast.parse(path.read_text())) or ""
        name, _, promise = text.partition("\n\n")[0].replace("\n", " ").partition(": ")
        found[str(path.relative_to(TESTS))] = name.rstrip("."), promise.rstrip(".")
    return found


def page() -> str:
    text, folder = HEADER, ""
    for path, (name, promise) in features().items():
        room = str(Path(path).parent)
        if room != folder:
            text, folder = f"{text}\n## {room}\n\n", room
        text += f"- **{name}**{f': {promise}' if promise else ''}. `{path}`\n"
    return text


if __name__ == "__main__":
    PAGE.write_text(page())
