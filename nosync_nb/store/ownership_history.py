"""Succession: who wrote a log, opening by opening, where its frames cannot be compared any more.

Each owner draws a word when he begins, which stands in the head of his segments. A checkpoint says
of each owner of before the word, and which frame was the last one when he ended.

Failure: 1. The disk comes back from an old copy, or from a snapshot that was taken while somebody
wrote. 2. Who opens it next is of the same generation as the owner who was lost, or goes on where
that one had only come by then. 3. He writes so much that what a replica has beyond the copy is
older than his checkpoints, and of which nothing is left to be compared with. Hence what a replica
has of an owner is here if the word is the same, and his part went as far here.

What is known is known of all owners since the first of which it is said, and of those before him
nothing: of a log that is older than the word, of more owners than are kept.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nosync_nb.store.log import Frame
from nosync_nb.store.log.segments import Segment
from nosync_nb.store.safe_decoding import guarded_decoding

KEPT_MAX = 1024
_KEY = "owners"


class OwnerTenure(NamedTuple):
    """One owner: his word, and the last frame that the log had when he ended."""

    word: bytes
    last: int


Reigns = Mapping[int, OwnerTenure]
"""Owners by their generations; complete from the first of them on."""


def decode_ownership(meta: Mapping[str, Any]) -> Reigns:
    """The owners that a checkpoint names.

    Raises:
        CorruptLogError: it makes no sense.
    """
    with guarded_decoding("the owners that a checkpoint names"):
        return {
            int(generation): OwnerTenure(bytes.fromhex(word), int(last))
            for generation, word, last in meta.get(_KEY, ())
        }


def includes_owner(reigns: Reigns, head: Segment | None, seq: int) -> bool:
    """Whether a log has what a segment of it elsewhere holds up to a frame, as far as is known.

    Args:
        reigns: of the log.
        head: of that segment; None: it is not known whose it is.
    """
    if head is None or seq == 0:
        return True
    if _knows(reigns, head.generation, head.word, seq):
        return True
    # Of an owner who wrote nothing no trace is left if the next one wrote no checkpoint.
    if head.before is None or seq > head.start.seq:
        return False
    return _knows(reigns, head.before[0], head.word_before, seq)


def _knows(reigns: Reigns, generation: int, word: bytes, seq: int) -> bool:
    """Whether an owner is one of those of a log, and wrote as far there."""
    if generation < min(reigns, default=generation + 1):
        return True
    known = reigns.get(generation)
    return known is not None and known.word == word and seq <= known.last


class OwnershipHistory:
    """Who wrote a log that is written here.

    Args:
        heads: of all segments that are there, the last of them the own one.
        meta: of the checkpoint that it was opened with.
        seq: the frame that it was made after.
        frames: those since.
    """

    def __init__(
        self, heads: Sequence[Segment], meta: Mapping[str, Any], seq: int, frames: Sequence[Frame]
    ) -> None:
        self._own = heads[-1] if heads else None
        self._before = dict(decode_ownership(meta))
        words = {head.generation: head.word for head in heads}
        if self._before:
            newest = max(self._before)  # he may have gone on after the checkpoint
            words = {each: word for each, word in words.items() if each > newest}
            words[newest] = self._before[newest].word
        else:
            words = {each: word for each, word in words.items() if any(word)}
        for generation, word in words.items():
            count = bisect_right(frames, generation, key=lambda frame: frame.generation)
            last = frames[count - 1].position.seq if count else seq
            self._before[generation] = OwnerTenure(word, last)

    def saved(self, seq: int) -> dict[str, Any]:
        """What a checkpoint after a frame says of it."""
        if self._own is None:
            return {}
        reigns = {**self._before, self._own.generation: OwnerTenure(self._own.word, seq)}
        kept = sorted(reigns)[-KEPT_MAX:]
        return {_KEY: [[each, reigns[each].word.hex(), reigns[each].last] for each in kept]}
