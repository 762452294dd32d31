"""Ports that stay free until a server of a test binds them, and while it is started again.

One that the system gives (port 0) is of the range from which it gives each client its own, so while
nobody listens there a client of any test may get it. These are below that range; each process that
runs tests has its own part of them, and none is given twice.
"""

from __future__ import annotations

import os
import random
import socket
from itertools import cycle

FIRST, EACH = 20_000, 1_500

_own = FIRST + EACH * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 8)
_begun = random.randrange(EACH)
_ports = cycle([_own + (_begun + i) % EACH for i in range(EACH)])


def free_port() -> int:
    """A port of this machine at which nobody listens."""
    for port in _ports:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError("unreachable")
