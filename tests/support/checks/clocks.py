"""The clocks of frames, decoded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from nosync_nb.store.provenance import LABEL, encoded_clocks
from nosync_nb.store.records.payloads import CLOCKS, PayloadEntry


class BatchLabel(NamedTuple):
    """One batch of a log: the generation that wrote it, its upper, and its digest."""

    log: int
    generation: int
    upper: int
    digest: int


class BatchClock(NamedTuple):
    """The batch that a frame adds to a log, and the last batches of its named inputs."""

    own: BatchLabel
    inputs: tuple[BatchLabel, ...]


def read_clocks(data: bytes | memoryview) -> list[BatchClock]:
    """Returns the clocks of a frame; see `encoded_clocks`."""
    return [
        BatchClock(
            BatchLabel(*LABEL.unpack(own)), tuple(map(BatchLabel._make, LABEL.iter_unpack(inputs)))
        )
        for own, inputs in encoded_clocks(bytes(data))
    ]


def clocks_in_entries(entries: Iterable[PayloadEntry]) -> list[BatchClock]:
    """Returns the clocks among the entries of a frame."""
    return [clock for each in entries if each.kind == CLOCKS for clock in read_clocks(each.data)]
