"""File references of a frame or checkpoint are decoded once."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from nosync_nb.errors import CorruptLogError
from nosync_nb.store.records import file_references, payloads
from nosync_nb.store.records.file_references import FileReference
from nosync_nb.store.records.payloads import PayloadEntry

REFS = [[f"log1-{n}.arrow", 1, 0, 2**64, 100 + n, f"{n:032x}"] for n in range(2)]
FILES = {name: FileReference(name, size, digest) for name, *_, size, digest in REFS}


def frame(epoch: int, padding: int = 0) -> bytes:
    """An epoch with rows in files and inline rows."""
    named = PayloadEntry(7, payloads.FILES, json.dumps(REFS).encode())
    return payloads.encode_payload(
        epoch, 0.0, {}, [named, PayloadEntry(8, payloads.INLINE, bytes(padding))]
    )


def checkpoint(epoch: int, padding: int = 0) -> bytes:
    """A checkpoint with a layer in files, after one owner."""
    meta = {
        "layers": {"7": [1, {}, [[0, epoch, REFS]]]},
        "owners": [[1, "00" * 8, epoch]],
        "padding": " " * padding,
    }
    return payloads.encode_payload(epoch, 0.0, meta, [])


@pytest.mark.parametrize(
    ("made", "of"),
    [
        (frame, file_references.files_of_frame),
        (checkpoint, file_references.files_of_checkpoint),
    ],
)
def test_small_records_are_cached_and_large_ones_reread(
    made: Callable[..., bytes], of: Callable[[bytes], Any]
) -> None:
    for padding, once in ((0, True), (1 << 14, False)):
        data = made(3 + padding, padding)
        first, again = of(data), of(bytes(bytearray(data)))
        assert first == again
        assert (first is again) == once
        assert first.epoch == 3 + padding
        assert first.files == FILES
        assert first.namers == {name: {7} for name in FILES}
        assert of(made(4 + padding, padding)).epoch == 4 + padding


@pytest.mark.parametrize("kind", [bytes, memoryview])
def test_invalid_references_are_damage_on_every_read(
    kind: Callable[[bytes], Any],
) -> None:
    data = payloads.encode_payload(1, 0.0, {}, [PayloadEntry(7, payloads.FILES, b"[[1]]")])
    for _ in range(2):
        with pytest.raises(CorruptLogError):
            file_references.files_of_frame(kind(data))
