"""Fencing: the control block and the owner file after a loss of power."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faults.faults import FakeMachine, FaultyFiles, HastyFiles

from nosync_nb.errors import CorruptLogError, DurabilityError, FencedError
from nosync_nb.files.filesystem import Files
from nosync_nb.store.log import Log, fencing, folder, owner
from nosync_nb.store.log.fencing import ControlBlock, WriterLease

SEEDS = range(20)
MAGIC, FORMAT, GENERATION, INVERSE = range(4)
DURABLE, NOTED, OUTBID = 6, 8, 10
MASK = (1 << 64) - 1


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "x.nosync")


def acquire_lease(files: Files, path: str, *, takeover: bool = False) -> WriterLease:
    """Acquires the lease as another process."""
    files.make_folder(path)
    lease = fencing.claim_lease(files, path, FakeMachine(), takeover=takeover, generation_min=0)
    lease.acquire()
    return lease


def change_word(path: str, word: int, change: Callable[[int], int]) -> None:
    """Changes a word of the generation file."""
    file = Path(path, "generation")
    data = bytearray(file.read_bytes())
    place = slice(8 * word, 8 * word + 8)
    data[place] = change(int.from_bytes(data[place], "little")).to_bytes(8, "little")
    file.write_bytes(data)


def control_block(path: str) -> ControlBlock:
    return ControlBlock(Files().mapped(os.path.join(path, "generation")))


@pytest.mark.fault(12)
def test_foreign_generation_file_is_reported_and_kept(path: str) -> None:
    acquire_lease(HastyFiles(), path).close()
    change_word(path, MAGIC, lambda word: word ^ 1)
    before = Path(path, "generation").read_bytes()
    with pytest.raises(CorruptLogError, match=r"generation' is damaged"):
        control_block(path)
    with pytest.raises(CorruptLogError, match=r"generation' is damaged"):
        acquire_lease(HastyFiles(), path, takeover=True)
    assert Path(path, "generation").read_bytes() == before


@pytest.mark.fault(10)
@pytest.mark.parametrize("word", [GENERATION, INVERSE])
def test_half_written_generation_is_ignored(path: str, word: int) -> None:
    acquire_lease(HastyFiles(), path).close()
    second = acquire_lease(HastyFiles(), path, takeover=True)
    assert second.number == 2
    second.close()
    change_word(path, word, lambda word: word ^ 1 << 50)
    assert control_block(path).generation == 0
    assert acquire_lease(HastyFiles(), path, takeover=True).number == 3


@pytest.mark.fault(10)
@pytest.mark.parametrize(
    ("first", "read"), [(DURABLE, ControlBlock.durable), (NOTED, ControlBlock.last_note)]
)
def test_half_written_number_is_ignored(
    path: str, first: int, read: Callable[[ControlBlock, int], int | None]
) -> None:
    lease = acquire_lease(HastyFiles(), path)
    lease.publish_durable(7)
    lease.note(7)
    assert read(control_block(path), 1) == 7
    for word in (first, first + 1):
        change_word(path, word, lambda word: word ^ 1)
        assert read(control_block(path), 1) is None
        change_word(path, word, lambda word: word ^ 1)
    assert read(control_block(path), 1) == 7


@pytest.mark.fault(10, 12)
def test_outbid_generation_is_accepted_within_bounds(path: str) -> None:
    acquire_lease(HastyFiles(), path).close()
    for word, accepted in ((1000, 1000), (1 << 40, 0), (1000, 1000)):
        change_word(path, OUTBID, lambda _, word=word: word)
        change_word(path, OUTBID + 1, lambda _, word=word: word ^ MASK)
        assert control_block(path).outbid == accepted
    change_word(path, OUTBID, lambda word: word ^ 1)
    assert control_block(path).outbid == 0
    second = acquire_lease(HastyFiles(), path, takeover=True)
    assert second.number == 2
    second.close()
    change_word(path, OUTBID, lambda word: word ^ 1)
    assert acquire_lease(HastyFiles(), path, takeover=True).number == 1001


@pytest.mark.fault(24)
def test_fenced_owner_does_not_release_log(path: str) -> None:
    first = acquire_lease(HastyFiles(), path)
    second = acquire_lease(HastyFiles(), path, takeover=True)
    with pytest.raises(FencedError):
        first.release(known=0, closed=True)
    found = owner.read_owner(HastyFiles(), path)
    assert found == second.owner
    assert found is not None
    assert not found.released


@pytest.mark.fault(9)
def test_generation_is_unique_after_power_loss_of_owner_file(
    tmp_path: Path,
) -> None:
    for seed in SEEDS:
        path, files = str(tmp_path / f"{seed}"), FaultyFiles(seed=seed)
        given = acquire_lease(files, path)
        files.unlink(os.path.join(path, "owner"))
        files.lose_power(path)
        given.close()
        assert acquire_lease(HastyFiles(), path).number == 2


def test_file_system_with_stale_maps_is_refused(path: str) -> None:
    class Lagging(HastyFiles):
        """A disk whose maps show an old content of the file."""

        def mapped(self, path: str, *, write: bool = False) -> Any:
            Path(f"{path}.copy").write_bytes(Path(path).read_bytes())
            return super().mapped(f"{path}.copy", write=write)

    acquire_lease(HastyFiles(), path).close()
    before = owner.read_owner(Files(), path)
    lease = fencing.claim_lease(Lagging(), path, FakeMachine(), takeover=True, generation_min=0)
    with pytest.raises(DurabilityError, match="memory maps do not show writes"):
        lease.acquire()
    lease.give_up()
    assert owner.read_owner(Files(), path) == before


@pytest.mark.fault(9)
def test_folder_of_killed_owner_survives_power_loss(tmp_path: Path) -> None:
    class Hurried(FaultyFiles):
        """A disk whose user dies before the name of the folder is synced."""

        hurries = True

        def sync_folder(self, path: str) -> None:
            if not self.hurries:
                super().sync_folder(path)

    for seed in SEEDS:
        root, files = tmp_path / f"{seed}", Hurried(seed=seed)
        files.hurries = False
        files.make_folder(str(root))
        files.hurries = True
        files.make_folder(str(root / "log"))
        files.hurries = False
        folder.check_log_folder(files, str(root / "log"), FakeMachine(), write=True)
        files.lose_power(str(root))
        assert (root / "log").is_dir()


@pytest.mark.parametrize("place", [7, ["/x"], "logs", "/logs\0", None])
def test_owner_with_invalid_folder_is_damage(path: str, place: object) -> None:
    """The folder in the owner file is validated: it must be a path."""
    Log.open(path, files=HastyFiles()).close()
    found = owner.read_owner(HastyFiles(), path)
    assert found is not None
    assert found.place.path == path
    text = (Path(path) / "owner").read_bytes().rsplit(b"\n", 2)[0]
    fields = json.loads(text)
    fields["place"] = {"path": place, "device": 1, "number": 1}
    text = json.dumps(fields).encode()
    (Path(path) / "owner").write_bytes(text + f"\n{zlib.crc32(text):08x}\n".encode())
    with pytest.raises(CorruptLogError, match="the owner of this log is unknown"):
        owner.read_owner(HastyFiles(), path)
    Log.open(path, files=HastyFiles(), takeover=True).close()
