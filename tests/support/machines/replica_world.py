"""A log with replicas in one thread: random actions, random faults, and invariants.

The disks are in memory, each process is a `FakeMachine`, and shippers are called like functions. A
seed therefore decides everything, and a life of hundreds of steps takes some hundredths of a
second.
"""

from __future__ import annotations

import hashlib
import json
import random
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from faults.faults import Crash, FakeMachine
from faults.memory_disk import Directory, Inode, MemoryFiles, Tree
from xxhash import xxh3_64_intdigest

from machines.lossy_channel import Message, Wire, arrives
from nosync_nb.errors import CorruptLogError, DurabilityError, FencedError, SchemaError
from nosync_nb.files.filesystem import Files
from nosync_nb.store.log import Log
from nosync_nb.store.log.frames import Frame, Mark, scan_buffer
from nosync_nb.store.log.recovery import CaughtUpFrames
from nosync_nb.store.log.segments import Segment
from nosync_nb.store.ownership_history import OwnershipHistory
from nosync_nb.store.records import file_references, payloads
from nosync_nb.store.records.file_references import FileReference
from nosync_nb.store.records.payloads import PayloadEntry
from nosync_nb.store.replication import consistency, file_layout
from nosync_nb.store.replication.agent.log_source import LogSource
from nosync_nb.store.replication.agent.shipper import Shipper
from nosync_nb.store.replication.agent.takeover import (
    QuorumPendingError,
    ReplicaAheadError,
    TakeoverPoll,
)
from nosync_nb.store.replication.backends.folder import FolderReplica
from nosync_nb.store.replication.config import ReplicaConfig, checked_config, quorum_index
from nosync_nb.store.replication.protocol import LogName
from nosync_nb.store.replication.restore import lazy_fetch, restore
from nosync_nb.trace.parts.arrow_file import MAGIC, TAIL

COUNT, QUORUM = 3, 2
HOME = "/world"
ACTIONS = {
    "append": 30, "append_file": 8, "sync": 10, "ship": 30, "checkpoint": 4, "reopen": 2,
    "take_over": 2, "cut_ship": 4, "refuse_ship": 4, "kill": 2, "power": 2, "replica_power": 3,
    "wipe": 1, "lose_disk": 2, "old_copy": 1, "keep_copy": 1, "zombie": 3, "flip": 1,
    "cut": 3, "refuse": 3, "clock": 2, "part": 3, "heal": 4, "noisy_ship": 6, "deliver": 4,
    "keep_replica": 1, "old_replica": 1,
}  # fmt: skip
FAULTS = {
    "cut while shipping", "refused while shipping", "cut", "refused", "undecided", "fenced",
    "ahead", "old", "away", "lost", "reply lost", "twice", "late", "delivered", "restored",
    "outpaced", "caught up",
}  # fmt: skip
"""The faults that a run of some lives must include, beside every action and every step of a
disk.
"""
STEPS = {"append", "write_at", "sync", "create", "rename", "unlink", "sync_folder"}
ROUNDS_MAX = 40
READ_BACK = 0.1  # of the times that a replica acknowledges


def part_of(data: bytes) -> tuple[bytes, str]:
    """The verified bytes of a part file of at most one MiB, and its digest."""
    footer = bytes(4) + struct.pack("<i", 4) + b"ARROW1"
    tail = TAIL.pack(0, 0, xxh3_64_intdigest(footer), 1, len(data), MAGIC)
    table = struct.pack("<Q", xxh3_64_intdigest(data)) + tail
    return data + table + footer, hashlib.blake2b(table, digest_size=16).hexdigest()


class Before(NamedTuple):
    """The expected state before a log's folder was replaced by a copy, and the last frame of the
    copy.
    """

    appended: list[bytes]
    announced: int
    holds: list[int]
    last: int


class World:
    """One log, its replicas, and the frames reported to its user.

    Attributes:
        appended: every payload of the history, from the first.
        announced: the greatest frame reported to be on a quorum of replicas.
        did: the count of each action and each fault.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.tree = Tree()
        self.quiet = MemoryFiles(self.tree)
        self.path = f"{HOME}/x.nosync"
        self.replicas: ReplicaConfig = checked_config(
            [f"file://{HOME}/replica-{i}" for i in range(COUNT)], QUORUM, log=self.path
        )
        self.disks = [MemoryFiles(self.tree, seed + 1 + i) for i in range(COUNT)]
        for address in self.replicas.replicas:
            self.quiet.make_folder(address.path)
        self.files = MemoryFiles(self.tree, seed)
        self.machine = FakeMachine()
        self.appended: list[bytes] = []
        self.contents: dict[str, bytes] = {}
        self.digests: dict[str, str] = {}
        self.live: list[str] = []
        self.left: list[list[bytes]] = []
        self.states: dict[int, set[bytes]] = {}
        self.maybe = b""
        self.announced = 0
        self.acks = [0] * COUNT
        self.holds = [0] * COUNT
        self.disks_lost = 0
        self.wiped: set[int] = set()
        self.damaged: set[int] = set()
        self.shippers: list[Shipper | None] = [None] * COUNT
        self.wires: list[Wire | None] = [None] * COUNT
        self.late: list[list[Message]] = [[] for _ in range(COUNT)]
        self.away: set[int] = set()
        self.kept: tuple[int, Directory] | None = None
        self.zombies: list[Shipper] = []
        self.copy: tuple[Directory, int] | None = None
        self.did: Counter[str] = Counter()
        self.log = self.opened()

    def run(self, steps: int) -> None:
        """Takes some steps, and checks the invariants after each."""
        for action in self.random.choices([*ACTIONS], [*ACTIONS.values()], k=steps):
            self.did[action] += 1
            getattr(self, action)()
        self.lose_disk()
        self.level()
        for disk in (self.files, *self.disks):
            self.leave(disk)

    def another(self, disk: MemoryFiles) -> MemoryFiles:
        """The disk as the next process sees it."""
        self.leave(disk)
        return MemoryFiles(self.tree, self.random.randrange(1 << 30))

    def leave(self, disk: MemoryFiles) -> None:
        """Adds the counts of a disk."""
        self.did.update({f"disk: {action}": count for action, count in disk.did.items()})
        disk.did.clear()

    # -- the log -----------------------------------------------------------------------------

    def opened(self, *, boot: str | None = None, takeover: bool = True) -> Log:
        """Opens the log as another process; its contents must be a prefix of `appended`."""
        self.machine.die()
        self.machine = self.machine.after(boot=boot)
        log = Log.open(
            self.path,
            takeover=takeover,
            files=self.files,
            machine=self.machine,
            background=False,
            further=self.further,
        )
        for inner in file_layout.FOLDERS.values():
            self.files.make_folder(f"{self.path}/{inner}")
        frames = [*log.frames()]
        found = [frame.payload for frame in frames]
        first = log.checkpoint_seq
        if first:
            assert log.checkpoint in self.states[first]
        meta = payloads.decode_payload(log.checkpoint).meta if log.checkpoint else {}
        self.succession = OwnershipHistory(log.heads, meta, first, frames)
        last = first + len(found)
        # Frames that were never acknowledged may belong to an abandoned history.
        whole = [*self.appended, self.maybe]  # a frame may be there whose call did not return
        histories = (each for each in (whole, *self.left) if len(each) >= last)
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
        self.poll = TakeoverPoll(COUNT, QUORUM)
        self.zombies += [shipper for shipper in self.shippers if shipper]
        del self.zombies[:-4]
        self.shippers, self.wires = [None] * COUNT, [None] * COUNT
        return log

    def further(self, head: Segment, end: Mark) -> CaughtUpFrames | None:
        """The frames of the last owner that reachable replicas have and its disk lacks."""
        there = [one for n, one in enumerate(self.replicas.replicas) if n not in self.away]
        found = restore.furthest_replica(self.quiet, there, head, end)
        if found is not None:
            self.did["caught up"] += 1
            self.complete(scan_buffer(found.data, end.offset, end)[0])
        return found

    def complete(self, taken: list[Frame]) -> None:
        """Fetches the files that frames name, like any reader."""
        entries = payloads.entries_by_log(payloads.decode_payload(f.payload) for f in taken)
        every = file_references.references(file_references.named_files({}, entries))
        for wanted in every.values():
            if not self.files.exists(file_layout.file_path(self.path, wanted.name)):
                self.bring(wanted)

    def clock(self) -> None:
        """Sets the clock, by up to ten years."""
        self.machine.wait(self.random.randrange(-(10**12) // 3, 10**12 // 3))

    def cut(self) -> None:
        """The owner dies at some step of an action."""
        phase = self.random.choice(["before", "inside", "after"])
        self.files.crash_in(self.random.randrange(1, 10), phase)
        done = len(self.appended)
        try:
            for act in self.random.choices([self.append, self.append_file, self.sync], k=4):
                act()
            self.checkpoint()
        except Crash:
            self.did["cut"] += 1
        else:
            done = len(self.appended)
        self.files.go_on()
        self.log = self.opened()
        assert len(self.appended) >= done

    def refuse(self) -> None:
        """The disk of the log is full or broken for some steps."""
        self.files.refuse(self.random.randrange(1, 6), 2, self.random.choice([5, 28]))
        for act in self.random.choices([self.append, self.append_file, self.sync], k=4):
            try:
                act()
            except DurabilityError:
                self.did["refused"] += 1
        self.files.go_on()
        self.sync()

    def payload(self, names: list[str]) -> bytes:
        refs = [[name, 1, 0, 2**64, len(self.contents[name]), self.digests[name]] for name in names]
        entries = [PayloadEntry(1, payloads.FILES, json.dumps(refs).encode())] if refs else []
        return payloads.encode_payload(len(self.appended) + 1, self.random.random(), {}, entries)

    def append(self, names: list[str] | None = None) -> None:
        payload = self.payload(names or [])
        self.maybe = payload
        self.log.append(payloads.EPOCH, payload)
        self.appended.append(payload)

    def append_file(self) -> None:
        """Commits an epoch whose rows are in a file."""
        name = f"log1-{len(self.appended)}-g{self.log.generation}-{len(self.contents)}.arrow"
        data = self.random.randbytes(self.random.randrange(1, 3000))
        self.contents[name], self.digests[name] = part_of(data)
        file = self.files.create(file_layout.file_path(self.path, name))
        file.append(self.contents[name])
        file.sync()
        file.close()
        self.files.sync_folder(f"{self.path}/layers")
        self.live.append(name)
        self.append([name])

    def sync(self) -> None:
        self.log.sync()
        assert self.log.durable == len(self.appended)

    def checkpoint(self) -> None:
        """Writes a checkpoint that names some of the earlier files; the others are deleted."""
        there = [n for n in self.live if self.files.exists(file_layout.file_path(self.path, n))]
        kept = sorted(self.random.sample(there, self.random.randrange(len(there) + 1)))
        refs = [[name, 1, 0, 2**64, len(self.contents[name]), self.digests[name]] for name in kept]
        seq = len(self.appended)
        meta = {"layers": {"1": [1, {}, [[0, 1, refs]]]}, **self.succession.saved(seq)}
        payload = payloads.encode_payload(seq, 0.0, meta, [])
        self.states.setdefault(seq, set()).add(payload)
        self.log.write_checkpoint(payload)
        for name in sorted({*there} - {*kept}):
            self.files.unlink(file_layout.file_path(self.path, name))
        self.live = kept
        self.log.trim()

    def reopen(self) -> None:
        """Closes and reopens the log."""
        self.log.close()
        self.log = self.opened(takeover=False)

    def take_over(self) -> None:
        """Another process takes the log over from a live owner."""
        self.log = self.opened()

    def kill(self) -> None:
        """The owner dies; its keeper ships the written frames to some of the replicas."""
        self.outlived()
        self.log = self.opened()

    def outlived(self) -> None:
        """Keepers ship the frames of a dead owner to some of the replicas."""
        for number in range(COUNT):
            if self.random.random() < 0.5:
                self.ship(number, written=True)

    def power(self) -> None:
        """The machine and its keepers lose power; the owner may have died before.

        Synced contents remain, unless a keeper has learned that replicas are ahead: then the disk
        has been set aside. Replicas cannot tell whether an abandoned history was ever safe, if
        another replica with it was emptied.
        """
        durable, lost = self.log.durable, self.disks_lost
        if self.random.random() < 0.25:
            self.outlived()
        self.darken()
        self.log = self.opened(boot=f"boot-{self.random.randrange(1 << 30)}")
        assert len(self.appended) >= durable or self.disks_lost > lost
        self.zombies.clear()

    def darken(self) -> None:
        """Closes the log's disk, and keeps only what was synced."""
        self.files.lose_power(self.path)
        self.files = self.another(self.files)

    # -- shipping ----------------------------------------------------------------------------

    def shipper(self, number: int) -> Shipper:
        """The shipper of the current owner for a replica."""
        shipper = self.shippers[number]
        if shipper is None:
            source = LogSource(self.path, self.log.generation, files=self.files)
            place = self.replicas.replicas[number].path
            folder = FolderReplica(place, source.log_id, files=self.disks[number])
            wire = self.wires[number] = Wire(folder, self.random, self.did, self.late[number])
            wire.reach(there=number not in self.away)
            shipper = self.shippers[number] = Shipper(
                source,
                wire,
                LogName(self.path, "me", COUNT, QUORUM),
                lambda why: self.poll.ask(number, why),
            )
        return shipper

    def ship(
        self, number: int | None = None, *, written: bool = False, noisy: bool = False
    ) -> None:
        """Ships to a replica; its acknowledged frames must be readable from it alone."""
        at = self.random.randrange(COUNT) if number is None else number
        shipper = self.shipper(at)
        try:
            if at in self.wiped:
                with suppress(DurabilityError):
                    shipper.ship(written=written)
                self.wiped.discard(at)
            before = shipper.bytes_sent, self.disks[at].changes()
            while shipper.ship(written=written):
                before = shipper.bytes_sent, self.disks[at].changes()
            assert before == (shipper.bytes_sent, self.disks[at].changes())  # nothing new, no work
        except ReplicaAheadError:
            # The disk is older than replicas: an old copy, or what the power took.
            self.did["ahead"] += 1
            self.lose_disk()
            return
        except QuorumPendingError:
            self.did["undecided"] += 1
            return
        except FencedError:
            # A promise that was made to an owner whose disk is lost; a later one is above it.
            self.did["outpaced"] += 1
            self.take_over()
            return
        except DurabilityError:
            if at not in self.away and not noisy:
                raise
            return
        known = shipper.acknowledged
        assert known is not None
        self.damaged.discard(at)
        assert written or known.seq == self.log.durable
        if self.random.random() < READ_BACK:
            assert self.readable(at) >= known.seq
        if not written:  # a keeper without an owner acknowledges to no process
            self.acks[at] = self.holds[at] = known.seq
            self.announced = max(self.announced, quorum_index(self.acks, QUORUM))

    def readable(self, number: int) -> int:
        """The number of frames that are readable from one replica, with intact files."""
        address = self.replicas.replicas[number]
        replica = FolderReplica(address.path, self.log.id, files=self.quiet)
        copy = consistency.examine_copy(self.quiet, address.url, replica)
        for name in copy.rows:
            written = self.contents[name]
            assert replica.read(name, 0, len(written) + 1) == written
        return copy.end.seq

    def acknowledged(self, number: int) -> int:
        """The last acknowledged frame of a replica."""
        place = self.replicas.replicas[number].path
        return FolderReplica(place, self.log.id, files=self.quiet).acknowledged()

    def whole(self, number: int) -> bool:
        """Returns True if the log can be read back from a replica."""
        try:
            assert self.readable(number) >= self.holds[number]
        except CorruptLogError:
            assert not self.holds[number] or number in self.damaged
            return False
        return True

    def cut_ship(self) -> None:
        """The process of a replica, or the keeper, dies at some step of shipping."""
        number = self.random.randrange(COUNT)
        disk = self.disks[number]
        phase = self.random.choice(["before", "inside", "after"])
        disk.crash_in(self.random.randrange(1, 12), phase)
        try:
            self.ship(number)
        except Crash:
            self.did["cut while shipping"] += 1
            self.shippers[number] = None
        disk.go_on()

    def refuse_ship(self) -> None:
        """The disk of a replica is full or broken for some steps."""
        number = self.random.randrange(COUNT)
        disk = self.disks[number]
        disk.refuse(self.random.randrange(1, 8), 3, self.random.choice([5, 28]))
        try:
            self.ship(number)
        except DurabilityError:
            self.did["refused while shipping"] += 1
        disk.go_on()

    def noisy_ship(self) -> None:
        """Ships while messages are lost, duplicated or late."""
        number = self.random.randrange(COUNT)
        self.shipper(number)
        wire = self.wires[number]
        assert wire is not None
        wire.disturb(0.15)
        self.ship(number, noisy=True)
        wire.disturb(0.0)

    def deliver(self) -> None:
        """Delivers a late message."""
        number = self.random.randrange(COUNT)
        late = self.late[number]
        if late and number not in self.away:
            self.did["delivered"] += 1
            arrives(late.pop(self.random.randrange(len(late))))

    def part(self) -> None:
        self.reach(self.random.randrange(COUNT), there=False)

    def heal(self) -> None:
        for number in range(COUNT):
            self.reach(number, there=True)

    def reach(self, number: int, *, there: bool) -> None:
        """Returns True if messages reach a replica."""
        (self.away.discard if there else self.away.add)(number)
        wire = self.wires[number]
        if wire is not None:
            wire.reach(there=there)

    def level(self) -> None:
        """Levels all replicas at the end; they must have the same bytes as the log."""
        self.heal()
        self.append_file()
        self.sync()
        rounds = 0
        while set(self.acks) != {len(self.appended)}:  # or an owner was fenced, or asked too few
            rounds += 1
            if rounds == ROUNDS_MAX:  # too many are empty, and one has more: people have to decide
                assert self.unfit() is None
                assert not self.announced
                self.did["undecidable"] += 1
                return
            for number in range(COUNT):
                self.ship(number)
        for number in range(COUNT):
            assert self.readable(number) == len(self.appended)

    def keep_replica(self) -> None:
        """Copies a replica."""
        number = self.random.randrange(COUNT)
        self.kept = number, self.tree.copy(self.replicas.replicas[number].path)

    def old_replica(self) -> None:
        """Replaces a replica by its copy and reconnects it; it no longer counts."""
        if self.kept is None or not self.spare(self.kept[0]):
            return
        number, copy = self.kept
        self.kept = None
        self.did["restored"] += 1
        self.tree.put(self.replicas.replicas[number].path, copy)
        self.disks[number] = self.another(self.disks[number])
        self.late[number].clear()
        self.shippers[number] = None
        self.acks[number] = self.holds[number] = 0
        self.damaged.discard(number)

    def replica_power(self) -> None:
        """The machine of a replica loses power; acknowledged frames must remain."""
        number = self.random.randrange(COUNT)
        path = self.replicas.replicas[number].path
        disk = self.disks[number]
        disk.lose_power(path)
        self.disks[number] = self.another(self.disks[number])
        self.late[number].clear()
        self.shippers[number] = None
        if self.holds[number]:
            assert self.readable(number) >= self.holds[number]

    def wipe(self) -> None:
        """Empties a replica; it no longer counts."""
        number = self.random.randrange(COUNT)
        if not self.spare(number):
            return
        self.clear(number)
        self.disks[number] = self.another(self.disks[number])
        self.late[number].clear()
        self.acks[number] = self.holds[number] = 0
        self.wiped.add(number)
        self.damaged.discard(number)

    def segments(self, number: int) -> list[str]:
        """The paths of the segments of a replica."""
        root = self.replicas.replicas[number].path
        names = sorted(self.tree.files(root))
        return [f"{root}/{name}" for name in names if "/segment-" in name]

    def clear(self, number: int) -> None:
        self.tree.put(self.replicas.replicas[number].path, Directory())

    def spare(self, number: int) -> bool:
        """Returns True if a quorum has the announced frames without one of the replicas."""
        others = [held for other, held in enumerate(self.holds) if other != number]
        return sum(held >= self.announced for held in others) >= QUORUM

    def flip(self) -> None:
        """Flips a byte of a segment at a replica and reconnects it: it must be repaired."""
        number = self.random.randrange(COUNT)
        files = self.segments(number)
        if not files or self.damaged or not self.spare(number):
            return
        inode = self.tree.find(files[-1])
        assert isinstance(inode, Inode)
        if not inode.content:  # the power took what had not been synced
            return
        self.damaged.add(number)
        inode.flip(self.random.randrange(8 * len(inode.content)))
        self.shippers[number] = None
        self.acks[number] = self.holds[number] = 0
        self.ship(number)

    def zombie(self) -> None:
        """The shipper of a replaced owner continues; nothing of it may be acknowledged."""
        for shipper in self.zombies:
            known = shipper.acknowledged
            try:
                shipper.ship()
            except (FencedError, DurabilityError, CorruptLogError):
                self.did["fenced"] += 1
            assert shipper.acknowledged == known

    # -- losing and restoring ----------------------------------------------------------------

    def keep_copy(self) -> None:
        """Copies the folder of the log."""
        self.sync()
        self.copy = self.tree.copy(self.path), len(self.appended)

    def old_copy(self) -> None:
        """Replaces the folder of the log by its copy: no shipment may hide later frames."""
        if self.copy is None or self.copy[1] > len(self.appended) or self.unfit() is None:
            return
        before = self.put_back()
        for _ in range(self.random.randrange(3)):
            self.busy()
            self.log = self.opened()
        if self.random.random() < 0.5:  # the replicas reported their owner
            self.outrank()
        self.refuted(before)

    def put_back(self, *, alone: bool = False) -> Before:
        """Replaces the folder of the log by its copy and opens it, perhaps without replicas."""
        assert self.copy is not None
        self.tree.put(self.path, self.copy[0])
        self.files = self.another(self.files)
        self.copy = None
        kept, announced, holds = self.appended, self.announced, list(self.holds)
        away, self.announced = self.away, 0
        self.away = {*range(COUNT)} if alone else away
        self.log = self.opened()
        self.away = away
        return Before(kept, announced, holds, len(self.appended))

    def outrank(self) -> None:
        """The next owner has a later generation than any that a replica has granted."""
        self.log.go_beyond(max(map(self.obeyed, range(COUNT))))
        self.log = self.opened()

    def refuted(self, before: Before) -> None:
        """The log continues from an old copy: announced frames must not be overwritten."""
        kept, announced, holds, last = before
        self.announced, self.holds = announced, holds
        self.append()
        self.sync()
        for number in (*range(COUNT), *range(COUNT)):  # what is empty waits for all to be asked
            try:
                self.shipper(number).ship()
            except (FencedError, QuorumPendingError) as error:
                self.did["ahead" if isinstance(error, ReplicaAheadError) else "old"] += 1
            except DurabilityError:
                assert number in self.away
            else:
                assert last >= announced or self.holds[number] <= last
                known = self.shipper(number).acknowledged
                assert known is not None
                self.holds[number] = min(self.holds[number], known.seq)  # the rest was never safe
        self.left, self.appended = [self.appended, *self.left], kept
        self.lose_disk()

    def obeyed(self, number: int) -> int:
        """The generation that a replica has granted; 0 if it is empty."""
        place = self.replicas.replicas[number].path
        said = FolderReplica(place, self.log.id, files=self.quiet).promised()
        return said.generation if said else 0

    def busy(self) -> None:
        """An owner appends until earlier frames are deleted, or appends nothing."""
        for _ in range(self.random.randrange(4)):
            for act in self.random.choices([self.append, self.append_file, self.checkpoint], k=4):
                act()
        self.sync()

    def lose_disk(self) -> None:
        """Loses the disk, and as many replicas as the quorum allows."""
        unfit = self.unfit()
        if unfit is None:
            return  # a possible loss is reported, and no log is created
        self.disks_lost += 1
        self.tree.put(self.path, None)
        self.files = self.another(self.files)
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
        self.live = [
            n for n in self.contents if self.files.exists(file_layout.file_path(self.path, n))
        ]
        for name in self.live:
            assert self.files.read(file_layout.file_path(self.path, name)) == self.contents[name]
        self.copy = None

    def unfit(self) -> set[int] | None:
        """The unreachable replicas; None if losing nothing needs one of them."""
        unfit = {n for n in range(COUNT) if not self.whole(n) or not self.acknowledged(n)}
        nothing = not any(self.segments(n) for n in range(COUNT)) and not self.announced
        return unfit if len(unfit) < QUORUM or nothing else None

    def restored(self, asked: ReplicaConfig) -> restore.RestoreResult | None:
        """Restores from replicas; None if they have nothing of the log."""
        try:
            restored = restore.restore_log(self.path, asked, self.quiet)
        except SchemaError as error:
            if "no log" not in str(error.hint):
                raise
            return None
        for wanted in restored.rows if restored else ():
            self.bring(wanted)
        return restored

    def bring(self, wanted: FileReference) -> None:
        """Fetches a file of rows from the first replica with an intact one."""

        def prove(_files: Files, path: str, wanted: FileReference) -> None:
            if self.quiet.read(path) != self.contents[wanted.name]:
                raise CorruptLogError(f"'{path}' is another file")

        files = self.quiet
        for address in self.replicas.replicas:
            replica = FolderReplica(address.path, self.log.id, files=files)
            with suppress(CorruptLogError):
                lazy_fetch.fetch_file(files, self.path, wanted, replica, prove=prove)
                return
        raise AssertionError(f"'{wanted.name}' is lost")

    @contextmanager
    def hidden(self, numbers: list[int]) -> Iterator[None]:
        """Makes some replicas unreachable inside the block: a file replaces each."""
        places = [self.replicas.replicas[n].path for n in numbers]
        there = [self.tree.find(path) for path in places]
        for path in places:
            self.tree.put(path, Inode(self.tree.number()))
        yield
        for path, node in zip(places, there, strict=True):
            self.tree.put(path, node)
