"""Dictionary-encoded text: a column with few distinct texts, stored as one byte for each row.

This is the fourth physical form of a column. In a part file it is stored the same way: the codes in
the column, the texts in the file's header. Slices, taken rows and concatenated columns stay
encoded, so that merges move bytes instead of texts. All other functions decode first. The form is
Arrow's dictionary array. The dictionary always has `MOST` texts, so that no code in a damaged file
can be outside of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from nosync_nb.rows import buffers

Codes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]

MOST = 256
"""The maximum number of distinct texts of a column."""

BYTES_MAX = 1 << 16
"""The maximum size of all texts together, because every reader of a file reads them all."""

_ID = pa.dictionary(pa.uint8(), pa.string()).id
_SAMPLE = 1024


def is_dictionary(column: Any) -> bool:
    """Returns True if an Arrow column is dictionary-encoded."""
    return bool(column.type.id == _ID)


def dictionary_column(codes: pa.Array, texts: Sequence[str]) -> pa.DictionaryArray:
    """Returns an encoded column from the code of each row, which may be null.

    Cost: O(texts).
    """
    padded = [*texts, *[""] * (MOST - len(texts))]
    dictionary = buffers.arrow_from_list(padded, pa.string())
    return pa.DictionaryArray.from_arrays(codes, dictionary, safe=False)


def dictionary_encoded(column: pa.Array) -> pa.DictionaryArray | None:
    """Returns a column of text in this form; None if it has too many or too long texts.

    Cost: about 10 ns for each row; of a column with many distinct texts, only a part is read.
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
    """Returns the codes of a column for its used texts in ascending order, and these texts.

    Equal columns have equal results.
    """
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
    """Returns the code of each row; the code of a null is arbitrary."""
    codes: Codes = buffers.numbers(column.indices, np.uint8)
    return codes


def column_of_codes(codes: Codes, column: pa.DictionaryArray) -> pa.DictionaryArray:
    """Returns an encoded column of codes that refer to the texts of another column."""
    return pa.DictionaryArray.from_arrays(
        buffers.arrow_from_numpy(codes), column.dictionary, safe=False
    )


def decoded_column(column: pa.Array) -> pa.Array:
    """Returns an Arrow column without dictionary encoding.

    Cost: O(n) if it is encoded, otherwise O(1).
    """
    return column.dictionary.take(column.indices) if is_dictionary(column) else column


def take_codes(column: pa.DictionaryArray, index: np.ndarray[Any, Any]) -> pa.DictionaryArray:
    """Returns the rows at the given positions, still encoded."""
    indices = column.indices
    if not indices.null_count:
        return column_of_codes(codes_of(column)[index], column)
    codes = indices.take(buffers.arrow_from_numpy(index))
    return pa.DictionaryArray.from_arrays(codes, column.dictionary, safe=False)


def concat_dictionaries(columns: Sequence[pa.DictionaryArray]) -> pa.DictionaryArray | None:
    """Concatenates encoded columns; returns None if they have too many distinct texts together."""
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
