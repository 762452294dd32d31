"""Measurements of NoSync beside its peers, in the same run: `make bench`.

They reach the internals of a session through the same module as the tests, `internals`.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))
