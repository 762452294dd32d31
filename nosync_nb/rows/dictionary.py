"""Coded text: a column of few different texts, as one byte for each row.

The fourth physical form of a column, that of such a column in a part file: the codes lie there, the
texts in the file's header. Slices, rows taken and columns joined stay coded, so that merges move
bytes instead of texts; `plain` is what everything else starts with. Arrow has the form: an array
with a dictionary, of `MOST` texts always, so that no code in a file leads outside whatever it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from nosync_nb.rows import buffers

Codes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]

MOST = 256
"""So many texts a column may have."""

BYTES_MAX = 1 << 16
"""So long they may be together: whoever opens a file reads them all."""

_ID = pa.dictionary(pa.uint8(), pa.string()).id
_SAMPLE = 1024


def is_dictionary(column: Any) -> bool:
    """Whether a column that is no numpy array is coded."""
    return bool(column.type.id == _ID)


def dictionary_column(codes: pa.Array, texts: Sequence[str]) -> pa.DictionaryArray:
    """A coded column: the number of each row's text, null where that is null. O(texts)."""
    padded = [*texts, *[""] * (MOST - len(texts))]
    dictionary = buffers.arrow_from_list(padded, pa.string())
    return pa.DictionaryArray.from_arrays(codes, dictionary, safe=False)


def dictionary_encoded(column: pa.Array) -> pa.DictionaryArray | None:
    """A column of texts in this form, None if they are too many or too long.

    Cost: some 10 ns a row; of a column with many texts that of its first rows.
    """
    if is_dictionary(column):
        return column
    if len(column.slice(0, _SAMPLE).dictionary_encode().dictionary) > MOST:
        return None
    every = column.dictionary_encode()
    if len(every.dictionary) > MOST or every.dictionary.nbytes > BYTES_MAX:
        return None
    return dictionary_column(
        every.indices.cast(pa.uint8(), safe=False), every.dictionary.to_pylist()
    )


def sorted_dictionary(column: pa.DictionaryArray) -> tuple[pa.Array, list[str]]:
    """The codes of a column whose texts are those that it uses, in order: equal ones look alike."""
    codes, missing = codes_of(column), None
    if column.null_count:
        missing = buffers.null_mask_of(column.indices)
    there = codes if missing is None else codes[~missing]
    texts: list[str] = column.dictionary.to_pylist()
    used = {texts[code] for code in np.bincount(there, minlength=MOST).nonzero()[0].tolist()}
    number_of = {text: number for number, text in enumerate(sorted(used))}
    table = np.array([number_of.get(text, 0) for text in texts], np.uint8)
    return buffers.arrow_from_numpy(table[codes], nulls=missing), list(number_of)


def codes_of(column: pa.DictionaryArray) -> Codes:
    """The code of each row, anything where it is null."""
    codes: Codes = buffers.numbers(column.indices, np.uint8)
    return codes


def column_of_codes(codes: Codes, column: pa.DictionaryArray) -> pa.DictionaryArray:
    """Rows of the texts of another column."""
    return pa.DictionaryArray.from_arrays(
        buffers.arrow_from_numpy(codes), column.dictionary, safe=False
    )


def decoded_column(column: pa.Array) -> pa.Array:
    """An Arrow column as an array of its values. O(n) if it is coded."""
    return column.dictionary.take(column.indices) if is_dictionary(column) else column


def take_codes(column: pa.DictionaryArray, index: np.ndarray[Any, Any]) -> pa.DictionaryArray:
    """The rows at some positions, coded as before."""
    indices = column.indices
    if not indices.null_count:
        return column_of_codes(codes_of(column)[index], column)
    codes = indices.take(buffers.arrow_from_numpy(index))
    return pa.DictionaryArray.from_arrays(codes, column.dictionary, safe=False)


def concat_dictionaries(columns: Sequence[pa.DictionaryArray]) -> pa.DictionaryArray | None:
    """Coded columns one after the other; None if they have too many texts together."""
    number_of: dict[str, int] = {}
    tables = []
    for column in columns:
        texts: list[str] = column.dictionary.to_pylist()
        tables.append([number_of.setdefault(text, len(number_of)) for text in texts])
    if len(number_of) > MOST:
        return None
    parts = [
        np.array(places, np.uint8)[codes_of(column)]
        for column, places in zip(columns, tables, strict=True)
    ]
    nulls = None
    if any(column.null_count for column in columns):
        nulls = np.concatenate([buffers.null_mask_of(column.indices) for column in columns])
    return dictionary_column(
        buffers.arrow_from_numpy(np.concatenate(parts), nulls=nulls), list(number_of)
    )
