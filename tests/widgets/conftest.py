"""Fixtures of the views' tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from nosync_widgets import overview_poller
from nosync_widgets.overview_poller import OverviewPoller


@pytest.fixture
def pulse(session: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[OverviewPoller]:
    """A poller that polls only on `refresh`."""
    monkeypatch.setattr(overview_poller, "LOOK_S", 3600)
    pulse = OverviewPoller(session)
    yield pulse
    pulse.close()
