"""collect_list and collect_set: the values of a group as an array, in canonical order.

Spark leaves the order of these arrays open; here it is that of the values, null not among them, so
that equal groups have equal arrays.

Cost: an array is made anew from all values of its group whenever one of them changes. That is the
size of the result, which is written as well; a hot group is better served by other aggregates.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from nosync_nb import rows
from nosync_nb.operators.base import Step
from nosync_nb.operators.grouping import with_key_numbers
from nosync_nb.rows import Column, buffers
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Hashes, Updates


def collected_lists(
    trace: Trace, khash: Hashes, keys: Sequence[Column], copies: bool, step: Step
) -> Column:
    """One array for each key, empty where there is no value.

    Args:
        trace: rows (key..., value) without null values.
        copies: whether a value stands in the array as often as it is there, or once.
    """
    n = len(khash)
    type_ = trace.layout.types[-1]
    matches = trace.lookup(khash, keys, (len(keys),))
    if matches is None:
        values, times = rows.empty(type_), np.zeros(n, np.int64)
    else:
        step.add_touched(len(matches.diff))
        held = with_key_numbers(Updates(matches.columns, matches.diff), matches.probe, (type_,))
        value, probe = held.columns[0], np.asarray(held.columns[1])
        order = rows.sort_indices([probe, value], ("bigint", type_))
        order = order[held.diff[order] > 0]
        count = held.diff[order] if copies else np.ones(len(order), np.int64)
        values = rows.take(value, order.repeat(count))
        times = np.zeros(n, np.int64)
        np.add.at(times, probe[order], count)
    offsets = np.zeros(n + 1, np.int32)
    times.cumsum(out=offsets[1:], dtype=np.int32)
    return pa.ListArray.from_arrays(buffers.arrow_from_numpy(offsets), rows.to_arrow(values, type_))
