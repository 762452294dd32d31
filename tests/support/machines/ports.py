"""Ports that stay free until a server of a test binds them, also while it restarts.

A port from the system (port 0) is in the range of client ports, so any client may get it while no
server listens. These ports are below that range. Each test process has its own part of them, and
gives none twice.
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
    for port in _ports:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError("unreachable")
