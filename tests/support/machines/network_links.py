"""Replica servers in their own network name spaces, each behind a link that can be cut.

For a program that `other_host.run` has put into a network name space. A right that the machine
refuses ends the program with `FORBIDDEN` and the reason. Addresses are local (127.0.N.1 here,
127.0.N.2 there), because servers accept no others without a certificate; routes lead them over the
link.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from machines.other_host import FORBIDDEN

PORT = 7461
_THERE = 'echo; read go && exec "$@"'  # nothing, if who made it has ended before


def refused(why: str) -> NoReturn:
    """Ends the program, because the machine refuses a needed right."""
    sys.stdout.write(f"{why}\n")
    sys.exit(FORBIDDEN)


def done(*command: str, inside: int | None = None) -> None:
    """Runs a command as root, perhaps in the name space of a process; ends the program if it is
    refused.
    """
    space = [] if inside is None else ["nsenter", "-t", str(inside), "-n"]
    try:
        subprocess.run([*space, *command], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        why = getattr(error, "stderr", "") or error
        refused(f"no links ({' '.join(command[:3])}): {str(why).strip().splitlines()[-1]}")


class Linked:
    """A server behind a link, for a `with` block.

    Attributes:
        folder: of its copies.
        url: of the server.
    """

    def __init__(self, folder: Path, number: int) -> None:
        self.folder = folder
        self.url = f"grpc://127.0.{number}.2:{PORT}"
        self._near, self._far = f"near{number}", f"far{number}"
        self._here, self._there = f"127.0.{number}.1", f"127.0.{number}.2"
        command = [sys.executable, "-m", "nosync_nb.replica", str(folder), "--host", self._there]
        self._process = subprocess.Popen(
            ["unshare", "-n", "sh", "-c", _THERE, "sh", *command, "--port", str(PORT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._line()  # it is in its name space
        self._space = self._process.pid
        ends = ("type", "veth", "peer", "name", self._far, "netns", str(self._space))
        done("ip", "link", "add", "name", self._near, *ends)
        for link, inside in ((self._near, None), (self._far, self._space)):
            for one in ("all", link):
                where = f"net.ipv4.conf.{one}"
                done("sysctl", "-qw", f"{where}.route_localnet=1", inside=inside)
                done("sysctl", "-qw", f"{where}.rp_filter=0", inside=inside)
        done("ip", "link", "set", "lo", "up", inside=self._space)
        done("ip", "link", "set", self._near, "up")
        done("ip", "addr", "add", f"{self._here}/32", "dev", self._near)
        self._lead(self._there, self._near, self._here)
        self.heal()

    def __enter__(self) -> Linked:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        assert self._line().startswith(self.url)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def cut(self) -> None:
        """Drops all packets to the server, silently."""
        done("ip", "link", "set", self._far, "down", inside=self._space)

    def mute(self) -> None:
        """Drops all answers of the server."""
        away = ("blackhole", f"{self._here}/32", "table", "local")
        done("ip", "route", "replace", *away, inside=self._space)

    def slow(self, rate: str) -> None:
        """Slows the link down to a rate of `tc`."""
        how = ("tbf", "rate", rate, "burst", "2kb", "latency", "60s")
        done("tc", "qdisc", "replace", "dev", self._near, "root", *how)

    def hasten(self) -> None:
        done("tc", "qdisc", "del", "dev", self._near, "root")

    def heal(self) -> None:
        done("ip", "link", "set", self._far, "up", inside=self._space)
        self._lead(self._here, self._far, self._there, inside=self._space)

    def _lead(self, to: str, link: str, own: str, *, inside: int | None = None) -> None:
        way = (f"{to}/32", "dev", link, "src", own, "table", "local")
        done("ip", "route", "replace", *way, inside=inside)

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


def up() -> None:
    """Starts the loopback device of this program's name space."""
    if os.geteuid():
        refused("no links: not root")
    done("ip", "link", "set", "lo", "up")
