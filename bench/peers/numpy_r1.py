"""The limit on R1: its three kernels in bare numpy, and nothing else.

This module is written for one query and one type: a hash join, a count per label, merged layers. It
has no log, no readable past, no strings, no nulls, no hash collisions, and no other query. The
difference to an engine of numpy is the price of those.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any, NamedTuple

import numpy as np

from bench.workload import LABELS, Workload

_MIX = (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9), np.uint64(27))


class Layer(NamedTuple):
    """Rows in the order of their hash."""

    hashes: Any
    columns: tuple[Any, ...]
    diff: Any


def hashed(values: Any) -> Any:
    """Returns one number per value; equal values have equal numbers."""
    mixed = values.astype(np.uint64)
    mixed ^= mixed >> _MIX[0]
    mixed *= _MIX[1]
    mixed ^= mixed >> _MIX[2]
    return mixed


def append(layers: list[Layer], hashes: Any, columns: tuple[Any, ...], diff: Any) -> None:
    """Adds a layer, merged with earlier layers that are not twice as large."""
    order = np.argsort(hashes, kind="stable")
    layers.append(Layer(hashes[order], tuple(c[order] for c in columns), diff[order]))
    while len(layers) > 1 and 2 * len(layers[-1].diff) >= len(layers[-2].diff):
        new, old = layers.pop(), layers.pop()
        together = np.concatenate([old.hashes, new.hashes])
        order = np.argsort(together, kind="stable")
        pairs = zip(old.columns, new.columns, strict=True)
        columns = tuple(np.concatenate(pair)[order] for pair in pairs)
        diff = np.concatenate([old.diff, new.diff])[order]
        layers.append(Layer(together[order], columns, diff))


def matches(layers: list[Layer], hashes: Any) -> tuple[Any, list[Any], Any]:
    """Returns the rows of all layers with these hashes: probe numbers, columns, diffs."""
    probes, columns, diffs = [], [], []
    for layer in layers:
        low = layer.hashes.searchsorted(hashes)
        count = layer.hashes.searchsorted(hashes, "right") - low
        probe = np.arange(len(hashes)).repeat(count)
        row = (low - count.cumsum() + count).repeat(count) + np.arange(len(probe))
        probes.append(probe)
        columns.append([column[row] for column in layer.columns])
        diffs.append(layer.diff[row])
    joined = [np.concatenate(each) for each in zip(*columns, strict=True)]
    return np.concatenate(probes), joined, np.concatenate(diffs)


def epoch(edges: list[Layer], nodes: list[Layer], counts: list[Layer], change: Any) -> None:
    """Runs one epoch: joins the change with the nodes, adds it to the counts, stores it."""
    src, dst, diff = change
    hashes = hashed(dst)
    probe, (node, label), times = matches(nodes, hashes)
    assert (node == dst[probe]).all()
    append(edges, hashes, (src, dst), diff)
    key = hashed(label)
    order = np.argsort(key, kind="stable")
    key, label = key[order], label[order]
    starts = np.concatenate(([True], key[1:] != key[:-1])).nonzero()[0]
    added = np.add.reduceat((diff[probe] * times)[order], starts)
    key, label = key[starts], label[starts]
    old = np.zeros(len(key), np.int64)
    if counts:
        place, _, held = matches(counts, key)
        np.add.at(old, place, held)
    assert (old + added >= 0).all()
    append(counts, key, (label,), added)


def main() -> None:
    """Runs R1 and prints its latencies in milliseconds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--edges", type=int, default=1_000_000)
    parser.add_argument("--epochs", type=int, default=3000)
    options = parser.parse_args()
    workload = Workload(options.edges)
    changes = list(workload.epochs(options.epochs))
    edges: list[Layer] = []
    nodes: list[Layer] = []
    counts: list[Layer] = []
    clock = time.perf_counter
    started = clock()
    ones = np.ones(len(workload.node), np.int64)
    append(nodes, hashed(workload.node), (workload.node, workload.label), ones)
    ones = np.ones(len(workload.src), np.int64)
    epoch(edges, nodes, counts, (workload.src, workload.dst, ones))
    load_seconds = clock() - started
    latencies = []
    for each in changes:
        started = clock()
        src = np.concatenate((each.src, each.gone_src))
        dst = np.concatenate((each.dst, each.gone_dst))
        diff = np.ones(len(src), np.int64)
        diff[len(each.src) :] = -1
        epoch(edges, nodes, counts, (src, dst, diff))
        latencies.append(1000 * (clock() - started))
    labels = np.concatenate([layer.columns[0] for layer in counts])
    found = np.zeros(LABELS, np.int64)
    np.add.at(found, labels, np.concatenate([layer.diff for layer in counts]))
    assert {i: int(n) for i, n in enumerate(found) if n} == workload.expected(changes)
    print(json.dumps({"peer": "numpy", "load_seconds": load_seconds, "latencies_ms": latencies}))


if __name__ == "__main__":
    main()
