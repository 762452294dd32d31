"""The cost of a lost disk with replicas in an object store: requests, bytes, the first rows.

The store is moto's server on loopback, one Python process that takes some milliseconds for a
request. So the requests and bytes are printed beside the time; another store gets the same ones.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

from bench.replicas.faults import COUNT
from bench.report import Goals, MeasurementError, Table, run, run_killed


def objects(options: argparse.Namespace, goals: Goals) -> None:
    """Measures the time from an empty folder and two of three replicas to the rows."""
    if find_spec("moto") is None or find_spec("obstore") is None:
        print("\nObject store: not run, its server is not installed")
        return
    from tests.support.object_server import ObjectServer

    columns = (
        "disk and a replica lost",
        "     edges",
        "requests to ship",
        "that write",
        "requests to find",
        "MB read",
        "MB of all",
        "open to rows, s",
        "lost",
    )
    table = Table("The disk is lost, copies are in an object store", *columns)
    for edges in (100_000, 1_000_000):
        base = Path(tempfile.mkdtemp(prefix="nosync-bench-"))
        try:
            with ObjectServer() as server, mock.patch.dict(os.environ, server.environment()):
                server.make("bucket")
                made, found, asked = measured(base, edges, server.requests)
            gone = made["now"] - found["now"]
            figures = found["megabytes"], found["all"], found["seconds"], gone
            table.row("from a bucket", f"{edges:,}", *asked, *figures)
            goals.add(f"lost disk to rows from a bucket, {edges:,} edges, s", found["seconds"], 1.0)
        finally:
            shutil.rmtree(base, ignore_errors=True)


def measured(
    base: Path, edges: int, requests: list[tuple[str, str]]
) -> tuple[dict[str, Any], dict[str, Any], tuple[int, int, int]]:
    """Loses a disk and a replica; returns the figures before and after, and the requests.

    Returns:
        the last: requests while shipping, those of them that created an object, and those while
        recovering.
    """
    from obstore.store import S3Store

    plain: Any = {"client_options": {"allow_http": True}}
    bucket = S3Store("bucket", **plain)
    replicas = [f"s3://bucket/replica-{number}" for number in range(COUNT)]
    part = (base, "--edges", edges, "--replicas", *replicas)
    made = run_killed("-m", "bench.replicas.faults", "lose", *part)
    shipped, puts = len(requests), sum(method == "PUT" for method, _ in requests)
    shutil.rmtree(base / "x.nosync")
    bucket.delete([each["path"] for each in bucket.list("replica-1").collect()])
    size = sum(each["size"] for each in bucket.list("replica-0").collect())
    before = len(requests)
    found = run("-m", "bench.replicas.faults", "find", *part)
    if found["result"] != made["result"] or found["recomputed"]:
        raise MeasurementError("what came back from the bucket is something else")
    return made, {**found, "all": size / 1e6}, (shipped, puts, len(requests) - before)
