"""Verification: every byte of a log that counts, read and compared, while others go on using it.

    findings    what is told of it: damage, copies, bytes
    stream      the frames of a segment, and the gaps between them
    survey      what a log consists of now, by its checkpoints and frames
    verifying   all of it read, and what was damaged twice
    items       files that do not change any more, and what proves each, wherever it lies

A log is data from a stranger: nothing in it is run or unpickled, and what is decoded (names, sizes,
digests, epochs) is checked. Nothing is written and no lock is taken: whoever owns the log goes on,
and what he deletes meanwhile is no damage.
"""
