"""A log with replicas in one thread: what is done, what fails, and what must hold all the same.

Each disk is a `FaultyFiles`, each process a `FakeMachine`; who ships is called like a function. So
a seed decides everything, and a life of hundreds of steps takes milliseconds.
"""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from contextlib import suppress
from pathlib import Path

from faults import Crash, FakeMachine, FaultyFiles, HastyFiles

from nosync_nb.errors import CorruptLogError, DurabilityError, FencedError, SchemaError
from nosync_nb.store import journal
from nosync_nb.store.journal import Entry
from nosync_nb.store.log import Log
from nosync_nb.store.replicas import layout, restoring
from nosync_nb.store.replicas.folder import FolderReplica
from nosync_nb.store.replicas.replica import Name
from nosync_nb.store.replicas.settings import Replicas, checked, safe
from nosync_nb.store.replicas.shipping import AheadError, Poll, Shipper, UndecidedError
from nosync_nb.store.replicas.source import Source

COUNT, QUORUM = 3, 2
ACTIONS = {
    "append": 30, "append_file": 8, "sync": 10, "ship": 30, "checkpoint": 4, "reopen": 2,
    "take_over": 2, "cut_ship": 4, "refuse_ship": 4, "kill": 2, "power": 2, "replica_power": 3,
    "wipe": 1, "lose_disk": 2, "old_copy": 1, "keep_copy": 1, "zombie": 3, "flip": 1,
}  # fmt: skip


class World:
    """One log, its replicas, and what its user was told of them.

    Attributes:
        appended: every payload that is part of the history, from the first.
        announced: the greatest frame that was said to be on a quorum of replicas.
        did: how often each action was taken, and each fault occurred.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        self.path = str(folder / "x.nosync")
        self.replicas: Replicas = checked(
            [f"file://{folder}/replica-{i}" for i in range(COUNT)], QUORUM, log=self.path
        )
        self.disks = [FaultyFiles(seed=seed + 1 + i) for i in range(COUNT)]
        for address in self.replicas.replicas:
            Path(address.path).mkdir()
        self.files = FaultyFiles(seed=seed)
        self.machine = FakeMachine()
        self.appended: list[bytes] = []
        self.contents: dict[str, bytes] = {}
        self.live: list[str] = []
        self.left: list[list[bytes]] = []
        self.states: dict[int, set[bytes]] = {}
        self.announced = 0
        self.acks = [0] * COUNT
        self.holds = [0] * COUNT
        self.wiped: set[int] = set()
        self.damaged: set[int] = set()
        self.shippers: list[Shipper | None] = [None] * COUNT
        self.zombies: list[Shipper] = []
        self.copy: tuple[Path, int] | None = None
        self.did: Counter[str] = Counter()
        self.log = self.opened()

    def run(self, steps: int) -> None:
        """Takes so many steps, and looks after each whether all holds."""
        for _ in range(steps):
            action = self.random.choices([*ACTIONS], [*ACTIONS.values()])[0]
            self.did[action] += 1
            getattr(self, action)()
        self.lose_disk()

    # -- the log -----------------------------------------------------------------------------

    def opened(self, *, boot: str | None = None, takeover: bool = True) -> Log:
        """Opens the log as another process; what is there is a prefix of what was appended."""
        self.machine.die()
        self.machine = self.machine.after(boot=boot)
        log = Log.open(
            self.path, takeover=takeover, files=self.files, machine=self.machine, background=False
        )
        for inner in layout.FOLDERS.values():
            self.files.make_folder(str(Path(self.path, inner)))
        found = [frame.payload for frame in log.frames()]
        first = log.checkpoint_seq
        if first:
            assert log.checkpoint in self.states[first]
        last = first + len(found)
        # Frames of which nobody was told may be those of a history that was left.
        histories = (each for each in (self.appended, *self.left) if len(each) >= last)
        was = next(each for each in histories if each[first:last] == found)
        now = was[:last]
        pairs = enumerate(zip(self.appended, now, strict=False))
        common = next((i for i, (a, b) in pairs if a != b), min(len(self.appended), last))
        assert common >= self.announced
        if common < len(self.appended):
            self.left = [self.appended, *self.left]
        self.appended = now
        self.acks = [0] * COUNT
        self.holds = [min(each, common) for each in self.holds]
        self.poll = Poll(COUNT, QUORUM)
        self.zombies += [shipper for shipper in self.shippers if shipper]
        del self.zombies[:-4]
        self.shippers = [None] * COUNT
        return log

    def payload(self, names: list[str]) -> bytes:
        """An epoch's frame that names files."""
        refs = [[name, 1, 0, 2**64, len(self.contents[name]), "d"] for name in names]
        entries = [Entry(1, journal.FILES, json.dumps(refs).encode())] if refs else []
        meta = {"label": f"{len(self.appended)}-{self.random.randrange(1 << 30)}"}
        return journal.pack(len(self.appended) + 1, 0.0, meta, entries)

    def append(self, names: list[str] | None = None) -> None:
        """Commits an epoch."""
        payload = self.payload(names or [])
        self.log.append(journal.EPOCH, payload)
        self.appended.append(payload)

    def append_file(self) -> None:
        """Commits an epoch whose rows are in a file."""
        name = f"log1-{len(self.appended)}-g{self.log.generation}-{len(self.contents)}.arrow"
        self.contents[name] = self.random.randbytes(self.random.randrange(1, 3000))
        file = self.files.create(layout.path_of(self.path, name))
        file.append(self.contents[name])
        file.sync()
        file.close()
        self.files.sync_folder(str(Path(self.path, "layers")))
        self.live.append(name)
        self.append([name])

    def sync(self) -> None:
        """Waits for the disk."""
        self.log.sync()
        assert self.log.durable == len(self.appended)

    def checkpoint(self) -> None:
        """Writes a checkpoint that names some files of before; the others go."""
        there = [n for n in self.live if self.files.exists(layout.path_of(self.path, n))]
        kept = sorted(self.random.sample(there, self.random.randrange(len(there) + 1)))
        refs = [[name, 1, 0, 2**64, len(self.contents[name]), "d"] for name in kept]
        meta = {"layers": {"1": [1, {}, [[0, 1, refs]]]}}
        seq = len(self.appended)
        payload = journal.pack(seq, 0.0, meta, [])
        self.log.write_checkpoint(payload)
        self.states.setdefault(seq, set()).add(payload)
        for name in {*there} - {*kept}:
            self.files.unlink(layout.path_of(self.path, name))
        self.live = kept
        self.log.trim()

    def reopen(self) -> None:
        """Ends properly, and begins again."""
        self.log.close()
        self.log = self.opened(takeover=False)

    def take_over(self) -> None:
        """Another process takes the log from one that lives."""
        self.log = self.opened()

    def kill(self) -> None:
        """The owner dies; his keeper ships what was written, to some of the replicas."""
        for number in range(COUNT):
            if self.random.random() < 0.5:
                self.ship(number, written=True)
        self.log = self.opened()

    def power(self) -> None:
        """The machine loses its power, and keepers with it."""
        durable = self.log.durable
        self.files.lose_power(self.path)
        self.files = FaultyFiles(seed=self.random.randrange(1 << 30))
        self.log = self.opened(boot=f"boot-{self.random.randrange(1 << 30)}")
        assert len(self.appended) >= durable
        self.zombies.clear()

    # -- shipping ----------------------------------------------------------------------------

    def shipper(self, number: int) -> Shipper:
        """Who ships to a replica for the owner of now."""
        shipper = self.shippers[number]
        if shipper is None:
            source = Source(self.path, self.log.generation, files=self.files)
            place = self.replicas.replicas[number].path
            replica = FolderReplica(place, source.log_id, files=self.disks[number])
            shipper = self.shippers[number] = Shipper(
                source,
                replica,
                Name(self.path, "me", COUNT, QUORUM),
                lambda why: self.poll.ask(number, why),
            )
        return shipper

    def ship(self, number: int | None = None, *, written: bool = False) -> None:
        """Brings a replica level; what it acknowledges can be read from it alone."""
        at = self.random.randrange(COUNT) if number is None else number
        shipper = self.shipper(at)
        try:
            if at in self.wiped:
                with suppress(DurabilityError):
                    shipper.ship(written=written)
                self.wiped.discard(at)
            while shipper.ship(written=written):
                pass
        except AheadError:
            # The disk is older than replicas: an old copy, or what the power took.
            self.did["ahead"] += 1
            self.lose_disk()
            return
        except UndecidedError:
            self.did["undecided"] += 1
            return
        except FencedError:
            # A promise that was made to an owner whose disk is lost; a later one is above it.
            self.did["outpaced"] += 1
            self.take_over()
            return
        known = shipper.acknowledged
        assert known is not None
        self.damaged.discard(at)
        assert written or known.seq == self.log.durable
        assert self.readable(at) >= known.seq
        if not written:  # of what a keeper without an owner ships, nobody is told
            self.acks[at] = self.holds[at] = known.seq
            self.announced = max(self.announced, safe(self.acks, QUORUM))

    def readable(self, number: int) -> int:
        """How far a log can be read back from one replica, each file as it was written."""
        address = self.replicas.replicas[number]
        replica = FolderReplica(address.path, self.log.id, files=HastyFiles())
        copy = restoring.examined(HastyFiles(), address.url, replica)
        for name, size in copy.sizes.items():
            if name in self.contents:
                assert replica.read(name, 0, size) == self.contents[name]
        return copy.end.seq

    def cut_ship(self) -> None:
        """A replica's process, or the keeper, dies at some step of shipping."""
        number = self.random.randrange(COUNT)
        disk = self.disks[number]
        phase = self.random.choice(["before", "inside", "after"])
        disk.crash_in(self.random.randrange(1, 12), phase)
        try:
            self.ship(number)
        except Crash:
            self.did["cut"] += 1
            self.shippers[number] = None
        disk.go_on()

    def refuse_ship(self) -> None:
        """A replica's disk is full, or broken, for some steps."""
        number = self.random.randrange(COUNT)
        disk = self.disks[number]
        disk.refuse(self.random.randrange(1, 8), 3, self.random.choice([5, 28]))
        try:
            self.ship(number)
        except DurabilityError:
            self.did["refused"] += 1
        disk.go_on()

    def replica_power(self) -> None:
        """A replica's machine loses its power; what it acknowledged is there afterwards."""
        number = self.random.randrange(COUNT)
        path = self.replicas.replicas[number].path
        if not Path(path).exists():
            return
        disk = self.disks[number]
        disk.lose_power(path)
        self.disks[number] = FaultyFiles(seed=self.random.randrange(1 << 30))
        self.shippers[number] = None
        if self.holds[number]:
            assert self.readable(number) >= self.holds[number]

    def wipe(self) -> None:
        """A replica comes back empty; what it held counts no more."""
        number = self.random.randrange(COUNT)
        if not self.spare(number):
            return
        self.clear(number)
        self.disks[number] = FaultyFiles(seed=self.random.randrange(1 << 30))
        self.acks[number] = self.holds[number] = 0
        self.wiped.add(number)
        self.damaged.discard(number)

    def clear(self, number: int) -> None:
        """Empties a replica's folder."""
        for copy in Path(self.replicas.replicas[number].path).iterdir():
            shutil.rmtree(copy)

    def spare(self, number: int) -> bool:
        """Whether a quorum holds what was announced without one of the replicas."""
        others = [held for other, held in enumerate(self.holds) if other != number]
        return sum(held >= self.announced for held in others) >= QUORUM

    def flip(self) -> None:
        """A byte of a segment changes at a replica, which is connected anew: it is repaired."""
        number = self.random.randrange(COUNT)
        root = Path(self.replicas.replicas[number].path)
        files = sorted(root.glob("*/segment-*.log"))
        if not files or self.damaged or not self.spare(number):
            return
        self.damaged.add(number)
        path = files[-1]
        data = bytearray(path.read_bytes())
        data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
        path.write_bytes(data)
        self.shippers[number] = None
        self.acks[number] = self.holds[number] = 0
        self.ship(number)

    def zombie(self) -> None:
        """Who ships for an owner that was replaced goes on; nothing of it is acknowledged."""
        for shipper in self.zombies:
            known = shipper.acknowledged
            try:
                shipper.ship()
            except (FencedError, DurabilityError, CorruptLogError):
                self.did["fenced"] += 1
            assert shipper.acknowledged == known

    # -- losing and restoring ----------------------------------------------------------------

    def keep_copy(self) -> None:
        """Somebody copies the log's folder."""
        self.sync()
        target = self.folder / "copy"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(self.path, target)
        self.copy = target, len(self.appended)

    def old_copy(self) -> None:
        """The log's folder is replaced by the copy: nothing may be shipped that hides more."""
        if self.copy is None or self.copy[1] > len(self.appended):
            return
        shutil.rmtree(self.path)
        shutil.copytree(self.copy[0], self.path)
        self.files = FaultyFiles(seed=self.random.randrange(1 << 30))
        self.copy = None
        kept = self.appended
        announced, holds, self.announced = self.announced, list(self.holds), 0
        for _ in range(self.random.randrange(1, 4)):
            self.log = self.opened()
        self.announced, self.holds = announced, holds
        last = len(self.appended)
        self.append()
        self.sync()
        for number in range(COUNT):
            try:
                self.shipper(number).ship()
            except (FencedError, UndecidedError):
                self.did["old"] += 1
            else:
                assert last >= announced or self.holds[number] <= last
        self.left, self.appended = [self.appended, *self.left], kept
        self.lose_disk()

    def lose_disk(self) -> None:
        """The disk is gone, and as many replicas as the quorum allows do not answer."""
        roots = [Path(each.path) for each in self.replicas.replicas]
        empty = {n for n, root in enumerate(roots) if not [*root.glob("*/segment-*")]}
        unfit = self.damaged | empty
        if QUORUM - 1 < len(unfit) < COUNT or (len(empty) == COUNT and self.announced):
            return  # that it may be lost is said, and nothing is made anew
        shutil.rmtree(self.path)
        self.files = FaultyFiles(seed=self.random.randrange(1 << 30))
        whole = [n for n in range(COUNT) if n not in unfit]
        away = self.random.sample(whole, max(0, QUORUM - 1 - len(unfit)))
        with self.hidden(away):
            asked = self.replicas._replace(
                replicas=tuple(each._replace(log_id=self.log.id) for each in self.replicas.replicas)
            )
            restored = self.restored(asked)
        if restored is None:
            assert self.announced == 0
            for number in range(COUNT):  # copies that this log never acknowledged
                self.clear(number)
        self.log = self.opened(boot=f"boot-{self.random.randrange(1 << 30)}")
        assert len(self.appended) >= self.announced
        assert restored is None or len(self.appended) == restored.seq
        self.zombies.clear()
        self.live = [n for n in self.contents if Path(layout.path_of(self.path, n)).exists()]
        for name in self.live:
            assert Path(layout.path_of(self.path, name)).read_bytes() == self.contents[name]
        self.copy = None

    def restored(self, asked: Replicas) -> restoring.Restored | None:
        """What replicas give; None if they hold nothing of the log."""
        try:
            return restoring.restore(self.path, asked, HastyFiles())
        except SchemaError as error:
            if "no log" not in str(error.hint):
                raise
            return None

    def hidden(self, numbers: list[int]) -> _Away:
        """A block in which some replicas do not answer."""
        return _Away([Path(self.replicas.replicas[n].path) for n in numbers])


class _Away:
    """Folders that cannot be read for a while: a file stands in their place."""

    def __init__(self, paths: list[Path]) -> None:
        self._paths = [path for path in paths if path.exists()]

    def __enter__(self) -> None:
        for path in self._paths:
            path.rename(f"{path}.away")
            path.write_text("")

    def __exit__(self, *_: object) -> None:
        for path in self._paths:
            path.unlink()
            Path(f"{path}.away").rename(path)
