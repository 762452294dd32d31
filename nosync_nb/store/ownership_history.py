"""Records which owners wrote a log, for the time when its old frames are trimmed.

Each owner draws a random word when it opens the log, and writes it into the headers of its
segments. A checkpoint lists each earlier owner with its word, and with the number of the last frame
at the end of its ownership.

Failure: 1. The disk is restored from an old copy, or from a snapshot that was taken during a write.
2. The next owner has the same generation as the owner that was lost, or continues from a frame that
the lost owner had passed. 3. It writes so much that its checkpoints become newer than the frames
which a replica has beyond the copy. No frame is left to compare those with. Hence the frames of an
owner on a replica are in this log only if the words are equal, and this log has at least as many
frames of that owner.

The list is complete from its first owner on. Earlier owners are unknown: the log may be older than
the random words, or may have had more than `KEPT_MAX` owners.
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
    """One owner: its random word, and the number of the last frame at the end of its ownership."""

    word: bytes
    last: int


Reigns = Mapping[int, OwnerTenure]
"""The owners by generation, without gaps from the first listed one on."""


def decode_ownership(meta: Mapping[str, Any]) -> Reigns:
    """Returns the owners that a checkpoint lists.

    Raises:
        CorruptLogError: the list is invalid.
    """
    with guarded_decoding("the owners that a checkpoint names"):
        return {
            int(generation): OwnerTenure(bytes.fromhex(word), int(last))
            for generation, word, last in meta.get(_KEY, ())
        }


def includes_owner(reigns: Reigns, head: Segment | None, seq: int) -> bool:
    """Returns False if a log is known to lack frames of a copied segment.

    Args:
        reigns: the owners of the log.
        head: the header of the segment; `None` means that its owner is unknown.
        seq: the number of the last frame of the segment to compare.
    """
    if head is None or seq == 0:
        return True
    if _includes_frame(reigns, head.generation, head.word, seq):
        return True
    # An owner that wrote nothing is not listed if the next one wrote no checkpoint.
    if head.before is None or seq > head.start.seq:
        return False
    return _includes_frame(reigns, head.before[0], head.word_before, seq)


def _includes_frame(reigns: Reigns, generation: int, word: bytes, seq: int) -> bool:
    """Returns True if the log has an owner's frames up to `seq`, or if this is unknown."""
    if generation < min(reigns, default=generation + 1):
        return True
    tenure = reigns.get(generation)
    return tenure is not None and tenure.word == word and seq <= tenure.last


class OwnershipHistory:
    """The owners of a log that this process writes.

    Args:
        heads: the headers of all segments; the last one is the header of the current owner's
            segment.
        meta: the JSON of the checkpoint that the log was opened with.
        seq: the number of the last frame before that checkpoint.
        frames: the frames after the checkpoint.
    """

    def __init__(
        self, heads: Sequence[Segment], meta: Mapping[str, Any], seq: int, frames: Sequence[Frame]
    ) -> None:
        self._current_head = heads[-1] if heads else None
        self._earlier = dict(decode_ownership(meta))
        words = {head.generation: head.word for head in heads}
        if self._earlier:
            newest = max(self._earlier)  # it may have continued after the checkpoint
            words = {each: word for each, word in words.items() if each > newest}
            words[newest] = self._earlier[newest].word
        else:
            words = {each: word for each, word in words.items() if any(word)}
        for generation, word in words.items():
            count = bisect_right(frames, generation, key=lambda frame: frame.generation)
            last = frames[count - 1].position.seq if count else seq
            self._earlier[generation] = OwnerTenure(word, last)

    def saved(self, seq: int) -> dict[str, Any]:
        """Returns the entry for a checkpoint whose last frame is `seq`."""
        if self._current_head is None:
            return {}
        reigns = {
            **self._earlier,
            self._current_head.generation: OwnerTenure(self._current_head.word, seq),
        }
        retained = sorted(reigns)[-KEPT_MAX:]
        return {_KEY: [[each, reigns[each].word.hex(), reigns[each].last] for each in retained]}
