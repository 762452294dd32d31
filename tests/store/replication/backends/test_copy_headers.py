"""Headers of copies: flipped bits and excessive numbers are refused.

A checksum proves integrity, not that a server or a store is honest.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest
from checks.damaged_bytes import flipped

from nosync_nb.errors import CorruptLogError
from nosync_nb.store.replication import protocol
from nosync_nb.store.replication.backends import object_manifest
from nosync_nb.store.replication.backends.flight_client import FlightReplica
from nosync_nb.store.replication.backends.object_manifest import (
    CopyRecord,
    FileChange,
    ObjectPiece,
)
from nosync_nb.store.replication.protocol import FencingGrant, LogName, OwnerTerm

PROMISE = FencingGrant(
    OwnerTerm(3, "me"), "0123456789abcdef", LogName("/logs/x.nosync", "signer", 3, 2)
)
RECORD = CopyRecord(
    7,
    "0123456789abcdef",
    PROMISE,
    5,
    {
        "log1-1-g3-ab.arrow": FileChange(
            0, (ObjectPiece(object_manifest.record_key(7), 0, 4),), b"digest"
        )
    },
    (1, 7),
)
CRC_BYTES = 4


def grant_with(fields: dict[str, Any]) -> bytes:
    """A fencing record with other fields and their checksum."""
    original = json.loads(protocol.encode_grant(PROMISE).split(b"\n")[0])
    assert fields.keys() <= original.keys()
    text = json.dumps(original | fields).encode()
    return text + f"\n{zlib.crc32(text):08x}\n".encode()


@pytest.mark.fault(12)
def test_flipped_bit_in_fencing_record_is_detected() -> None:
    data = protocol.encode_grant(PROMISE)
    assert protocol.decode_grant(data, "copy") == PROMISE
    for at in range(len(data) - 1):  # all but the line end
        with pytest.raises(CorruptLogError, match="replica 'copy': the fencing record is damaged"):
            protocol.decode_grant(flipped(data, at), "copy")


@pytest.mark.fault(43)
@pytest.mark.parametrize(
    "fields",
    [
        {"generation": -1},
        {"generation": 1 << 63},  # the next generation would overflow
        {"generation": True},
        {"generation": 3.0},
        {"generation": "3"},
        {"owner": 7},
        {"incarnation": None},
        {"path": ["/logs"]},
        {"signer": {}},
        {"replicas": 0},
        {"replicas": True},
        {"quorum": 1 << 40},
    ],
    ids=str,
)
def test_fencing_record_out_of_bounds_is_refused(fields: dict[str, Any]) -> None:
    assert protocol.decode_grant(grant_with({}), "copy") == PROMISE
    with pytest.raises(CorruptLogError, match="replica 'copy': the fencing record is damaged"):
        protocol.decode_grant(grant_with(fields), "copy")


def record_with(fields: dict[str, Any], data: bytes = b"data") -> bytes:
    """A manifest record with other fields and their checksum."""
    made = object_manifest.encode_record(RECORD, data)
    head = len(made) - len(data)
    start = made.index(b"{")
    original = json.loads(made[start:head])
    assert fields.keys() <= original.keys()
    words = json.dumps(original | fields).encode()
    sizes = (len(words), zlib.crc32(words))
    numbers = b"".join(each.to_bytes(CRC_BYTES, "little") for each in sizes)
    return made[: start - len(numbers)] + numbers + words + data


@pytest.mark.fault(12)
def test_flipped_bit_in_manifest_record_is_detected() -> None:
    data = object_manifest.encode_record(RECORD, b"")
    plain = RECORD._replace(changes=object_manifest.decode_record(data, "copy").changes)
    assert object_manifest.decode_record(data, "copy") == plain
    for at in range(len(data)):
        with pytest.raises(CorruptLogError, match="a record of 'copy' is damaged"):
            object_manifest.decode_record(flipped(data, at), "copy")


@pytest.mark.fault(43)
@pytest.mark.parametrize(
    "fields",
    [
        {"slot": -1},
        {"slot": 1 << 63},
        {"seq": "5"},
        {"bytes": 5},
        {"writer": "0123456789ABCDEF"},
        {"writer": "../../../../../x"},
        {"writer": 7},
        {"reigns": [-1]},
        {"files": {"../key": None}},
    ],
    ids=str,
)
def test_manifest_record_out_of_bounds_is_refused(fields: dict[str, Any]) -> None:
    assert object_manifest.decode_record(record_with({}), "copy").writer == RECORD.writer
    with pytest.raises(CorruptLogError, match="a record of 'copy' is damaged"):
        object_manifest.decode_record(record_with(fields), "copy")


class FixedAnswer:
    """A connection to a server that gives the same answer to each call."""

    def __init__(self, answer: Any) -> None:
        self.answer = json.dumps(answer).encode()

    def call(self, *_: Any, **__: Any) -> bytes:
        return self.answer


@pytest.mark.parametrize("size", [-1, -(1 << 70), True, 1.0, "1", None])
def test_invalid_file_size_from_server_is_refused(size: Any) -> None:
    def held_files(files: Any) -> Any:
        line: Any = FixedAnswer(["0123456789abcdef", files])
        return FlightReplica(line, "grpc://here", bytes(16)).held().files

    assert held_files({"a": 0, "b": 7}) == {"a": 0, "b": 7}
    with pytest.raises(CorruptLogError, match="sent an invalid answer"):
        held_files({"a": 0, "b": size})
