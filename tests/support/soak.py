"""How many cases a test tries: enough for its promise by default, many more in the nightly profile.

`make soak` is that profile. What is promised is the same in both, and every assertion.
"""

from __future__ import annotations

from typing import TypeVar

from hypothesis import settings

T = TypeVar("T")

SOAK = settings.get_current_profile_name() == "nightly"


def tried(usual: T, soak: T) -> T:
    """How many, or which, are tried by this run."""
    return soak if SOAK else usual
