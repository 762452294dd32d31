"""Merge requests to the keeper: an unfinished one leaves nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from checks.damaged_bytes import flipped
from models.batch_model import numbers

from nosync_nb.errors import CorruptLogError, FencedError
from nosync_nb.files.filesystem import Files
from nosync_nb.store.replication.agent import offloaded_merges
from nosync_nb.store.replication.agent.offloaded_merges import (
    LINE_MAX,
    KeeperMerger,
    MergeProposal,
    MergeRequest,
    MergeRequests,
)
from nosync_nb.store.replication.agent.progress import parse_progress
from nosync_nb.trace import compaction
from nosync_nb.trace.batch import Batch, Layout
from nosync_nb.trace.parts.part_file import PartRef, open_part, write_part

LAYOUT = Layout(("bigint", "bigint"), (0,))


class OwnedLog:
    """Stands in for a log that has its owner for a number of checks."""

    checks = itertools.repeat(True)

    def __init__(self, *_: object, **__: object) -> None:
        self.check()

    def check(self) -> None:
        if not next(self.checks):
            raise FencedError("another owner")

    def close(self) -> None:
        pass


@pytest.fixture
def merge_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MergeRequest:
    """A request to merge two layers in files, in several ranges."""
    monkeypatch.setattr(offloaded_merges, "LogSource", OwnedLog)
    monkeypatch.setattr(OwnedLog, "checks", itertools.repeat(True))
    monkeypatch.setattr(compaction, "RANGE_ROWS", 16)
    (tmp_path / "layers").mkdir()
    layers = []
    for sign in (1, -1):
        batch = numbers(LAYOUT, [((x, 0 if sign < 0 else x % 2), sign) for x in range(60)])
        layers.append((write_part(str(tmp_path / "layers"), batch, f"log1-{sign + 1}"),))
    return MergeRequest(7, "trace1-1-3-g1", LAYOUT, tuple(layers))


def merged(
    tmp_path: Path, merge_request: MergeRequest, tell: Callable[[MergeProposal], None]
) -> MergeProposal:
    return KeeperMerger(str(tmp_path), 1, tell, Files()).merged(merge_request)


def read(tmp_path: Path, refs: tuple[PartRef, ...]) -> list[Batch]:
    return [open_part(str(tmp_path / "layers"), ref, LAYOUT, checked=True) for ref in refs]


def files(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "layers").iterdir()}


def test_merge_returns_all_rows_in_reported_ranges(
    tmp_path: Path, merge_request: MergeRequest
) -> None:
    progress: list[MergeProposal] = []
    result = merged(tmp_path, merge_request, progress.append)
    assert progress == [MergeProposal(7)] * len(progress)
    assert len(result.files) == len(progress) > 2
    assert result == MergeProposal(7, done=True, files=result.files)
    rows = {
        tuple(int(column[i]) for column in part.columns): int(part.diff[i])
        for part in read(tmp_path, result.files)
        for i in range(len(part))
    }
    expected = {(x, 1): 1 for x in range(1, 60, 2)} | {(x, 0): -1 for x in range(1, 60, 2)}
    assert rows == expected  # rows of even numbers cancel
    assert files(tmp_path) == {ref.path for layer in merge_request.layers for ref in layer} | {
        ref.path for ref in result.files
    }


@pytest.mark.fault(6, 24)
@pytest.mark.parametrize("looks", range(4))
def test_merge_ended_by_other_owner_leaves_nothing(
    tmp_path: Path, merge_request: MergeRequest, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    before = files(tmp_path)
    checks = itertools.chain(itertools.repeat(True, looks), itertools.repeat(False))
    monkeypatch.setattr(OwnedLog, "checks", checks)
    progress: list[MergeProposal] = []
    assert merged(tmp_path, merge_request, progress.append) == MergeProposal(
        7, done=True, why="another owner"
    )
    assert len(progress) == max(0, looks - 1)
    assert files(tmp_path) == before


@pytest.mark.fault(6, 24)
def test_owner_replaced_during_last_range_gets_no_proposal(
    tmp_path: Path, merge_request: MergeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, progress = files(tmp_path), list[MergeProposal]()
    ranges = len(merged(tmp_path, merge_request, progress.append).files)
    for name in files(tmp_path) - before:
        (tmp_path / "layers" / name).unlink()
    checks = itertools.chain(itertools.repeat(True, 1 + ranges), itertools.repeat(False))
    monkeypatch.setattr(OwnedLog, "checks", checks)
    assert merged(tmp_path, merge_request, progress.append).why == "another owner"
    assert files(tmp_path) == before


@pytest.mark.fault(6)
def test_merge_stops_after_its_range_when_owner_ends(
    tmp_path: Path, merge_request: MergeRequest
) -> None:
    before = files(tmp_path)
    merger = KeeperMerger(str(tmp_path), 1, lambda _: merger.end(0.0), Files())
    result = merger.merged(merge_request)
    assert result == MergeProposal(7, done=True, why="the owner that requested the merge has ended")
    assert files(tmp_path) == before
    merger.ask([merge_request])
    assert files(tmp_path) == before


@pytest.mark.fault(12, 14)
@pytest.mark.parametrize("gone", [False, True])
def test_damaged_file_is_not_merged(
    tmp_path: Path, merge_request: MergeRequest, gone: bool
) -> None:
    """A merge of a damaged file would be intact, and wrong for ever."""
    path = tmp_path / "layers" / merge_request.layers[1][0].path
    path.write_bytes(flipped(path.read_bytes(), path.stat().st_size // 3))
    if gone:
        path.unlink()
    before = files(tmp_path)
    result = merged(tmp_path, merge_request, lambda _: None)
    assert result.done
    assert not result.files
    assert path.name in result.why
    assert files(tmp_path) == before


def test_request_is_parsed_from_any_chunks(merge_request: MergeRequest) -> None:
    other = merge_request._replace(merge=8)
    data = b"..." + merge_request.line + b".." + other.line + b"."
    for size in (1, 7, 100, len(data)):
        requests = MergeRequests()
        taken = [
            each
            for i in range(0, len(data), size)
            for each in requests.complete_requests(data[i : i + size])
        ]
        assert taken == [merge_request, other]


def test_truncated_or_invalid_request_is_ignored(merge_request: MergeRequest) -> None:
    requests = MergeRequests()
    assert requests.complete_requests(merge_request.line[:-40]) == []
    assert requests.complete_requests(b"....") == []
    assert requests.complete_requests(merge_request.line) == [merge_request]
    assert requests.complete_requests(b"x" * 2 * LINE_MAX) == []
    assert requests.complete_requests(b"\n[1, 2]\n{}\nnull\n\xff\n") == []
    outside = merge_request._replace(stem="../../etc/x")
    assert requests.complete_requests(outside.line) == []
    linked = merge_request.layers[0][0]._replace(path="../owner")
    assert requests.complete_requests(merge_request._replace(layers=((linked,),)).line) == []
    assert requests.complete_requests(merge_request.line) == [merge_request]


def test_proposal_with_invalid_part_is_refused() -> None:
    ref = ["../owner", 1, 0, 1, 1, "0"]
    with pytest.raises(CorruptLogError):
        parse_progress(f'{{"merge": 1, "done": true, "files": [{ref}]}}'.replace("'", '"').encode())
    assert parse_progress(b'{"merge": 1}') == MergeProposal(1)
