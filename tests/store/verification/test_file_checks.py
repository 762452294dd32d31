"""The verifier of one file: a short stretch of the log is read once for all readers."""

from __future__ import annotations

from nosync_nb.store.log import frames
from nosync_nb.store.verification import file_checks


def test_short_stretch_of_the_log_is_scanned_once_for_all_readers() -> None:
    before = frames.genesis_mark(bytes(16))
    for size, once in ((100, True), (1 << 16, False)):
        data, end = frames.build_frame(1, bytes(size), before, 1, 0)
        (first, _), (again, _) = (
            file_checks.scan_frames(bytes(bytearray(data)), 0, before) for _ in range(2)
        )
        assert [frame.end for frame in first] == [frame.end for frame in again] == [end]
        assert (first is again) == once
        torn, damage = file_checks.scan_frames(data[:-1], 0, before)
        assert not torn
        assert damage is not None
