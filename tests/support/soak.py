"""The number of cases of a test: fewer by default, many more in the nightly profile.

`make soak` is that profile. Promises and assertions are the same in both.
"""

from __future__ import annotations

from typing import TypeVar

from hypothesis import settings

T = TypeVar("T")

SOAK = settings.get_current_profile_name() == "nightly"


def tried(usual: T, soak: T) -> T:
    """The number or choice of cases for this run."""
    return soak if SOAK else usual
