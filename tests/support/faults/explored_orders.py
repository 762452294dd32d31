"""Small programs of two owners and two replicas, each in every order, with a crash at every step.

Nothing is random here, unlike in `replica_world`. One owner appends and ships, another one takes
over, appends and ships, and the shippers of the first one continue. Every order of these acts is
tried. In each order every step on a disk is once the last one of its process, before the step or
inside it. The third replica is silent until the end, so an acknowledged epoch is on both others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations, product
from typing import NamedTuple

from machines.replica_world import HOME, World

from faults.faults import Crash, Phase
from faults.memory_disk import MemoryFiles
from nosync_nb.errors import CorruptLogError, DurabilityError, FencedError
from nosync_nb.store.records import payloads
from nosync_nb.store.replication.restore.restore import QuorumUnavailableError

ACTS = {
    "a": "the first owner appends and syncs",
    "c": "the first owner writes a checkpoint",
    "0": "the first owner's shipper brings the first replica level",
    "1": "likewise the second one",
    "T": "another owner takes over",
    "H": "another one regains the log on another host; the first one keeps his disk, and knows not",
    "b": "he appends and syncs",
    "2": "his shipper brings the first replica level",
    "3": "likewise the second one",
}
BEHIND = {"b": "TH", "2": "TH", "3": "TH", "1": "0"}
"""The acts that must precede each act; the two replicas are alike."""
REPLICAS = 2
ELSEWHERE = f"{HOME}/elsewhere.nosync"


class Step(NamedTuple):
    """A step on a disk: the disk (0 is the log's), the number of the step, and its phase."""

    disk: int
    number: int
    phase: Phase


def orders(acts: str) -> Iterator[str]:
    """Every valid order of the acts, once."""
    for order in sorted(set(permutations(acts))):
        places = {act: order.index(act) for act in order}
        behind = ((act, first) for act, some in BEHIND.items() if act in places for first in some)
        if all(places[first] < places[act] for act, first in behind if first in places):
            yield "".join(order)


class Explored(World):
    """A world with given acts in which at most one process dies; its first epoch is safe."""

    def __init__(self) -> None:
        super().__init__(0)
        self.append()
        self.sync()
        for number in range(REPLICAS):
            self.ship(number)
        assert self.announced == 1
        self.first = self.log
        self.home = self.files
        self.died = False

    def go_through(self, order: str, last: Step | None = None) -> list[int]:
        before = [disk.count for disk in self.places]
        if last is not None:
            self.places[last.disk].crash_in(last.number, last.phase)
        for act in order:
            self.act(act)
        taken = [disk.count - was for disk, was in zip(self.places, before, strict=True)]
        for disk in (self.home, *self.disks):
            disk.go_on()
        self.lose_disk()
        self.level()
        self.log.close()
        return taken

    @property
    def places(self) -> list[MemoryFiles]:
        """The disk of the first owner, and those of the reachable replicas."""
        return [self.home, *self.disks[:REPLICAS]]

    def act(self, what: str) -> None:
        """Does one act; if its process dies, the next process continues there."""
        try:
            if what == "T":
                self.log = self.opened()
            elif what == "H":
                self.regain()
            elif what in "ac":
                self.owned(what)
            elif what == "b":
                self.append()
                self.sync()
            else:
                self.shipped(int(what))
        except Crash:
            self.died = True
            if self.home.dead:
                self.home.go_on()
                if self.files is self.home:
                    self.log = self.opened()
            for number, disk in enumerate(self.disks[:REPLICAS]):
                if disk.dead:
                    disk.go_on()
                    self.shippers[number] = None

    def owned(self, what: str) -> None:
        """The first owner acts; once it has been replaced it gets an error and changes nothing."""
        if self.log is self.first:
            if what == "c":
                self.checkpoint()
            else:
                self.append()
                self.sync()
            return
        try:
            self.first.append(payloads.EPOCH, self.payload([]))
            self.first.sync()
        except FencedError:
            return
        assert self.files is not self.home, "an owner who was replaced went on"

    def regain(self) -> None:
        """Another owner restores the log from the replicas; if too few have it, nothing was
        safe.
        """
        known = (each._replace(log_id=self.log.id) for each in self.replicas.replicas)
        here, self.path = self.path, ELSEWHERE
        try:
            found = self.restored(self.replicas._replace(replicas=tuple(known)))
        except QuorumUnavailableError:
            found = None
        if found is None:
            assert not self.announced
            self.path = here
            return
        self.files = MemoryFiles(self.tree)
        self.log = self.opened()

    def shipped(self, lane: int) -> None:
        """A shipper of the first or the second owner ships."""
        later, number = divmod(lane, REPLICAS)
        if later or self.log is self.first:
            self.ship(number)
            return
        for shipper in self.zombies:
            known = shipper.acknowledged
            try:
                shipper.ship()
            except (FencedError, DurabilityError, CorruptLogError):
                assert shipper.acknowledged == known
            else:
                raise AssertionError("a shipper whose owner was replaced went on")


def lived(order: str, last: Step | None = None) -> tuple[list[int], bool]:
    """Runs the acts in order; returns the steps of each disk, and whether a process died."""
    world = Explored()
    try:
        return world.go_through(order, last), world.died
    except BaseException as error:
        error.add_note(f"{order}, {last}")
        raise


def explored(order: str, phases: Sequence[Phase]) -> Iterator[bool]:
    """Runs the acts once without a crash, and once for each step that may be the last.

    Yields:
        Whether the process died: an earlier death may have made the step unnecessary.
    """
    taken, _ = lived(order)
    yield False
    for disk, count in enumerate(taken):
        for number, phase in product(range(1, count + 1), phases):
            yield lived(order, Step(disk, number, phase))[1]
