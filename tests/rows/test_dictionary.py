"""Dictionary-encoded text: an encoded column behaves like the column of its texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nosync_nb import rows
from nosync_nb.rows import dictionary
from nosync_nb.rows.arrow import to_python_values
from nosync_nb.rows.encoding import encode_column
from nosync_nb.rows.order import exact_codes, order_codes, sort_indices

TEXTS = st.one_of(
    st.none(), st.sampled_from(["", "\0", "a", "ab", "MAIL", "é", "a longer text, of 27 letters"])
)
ODD = pa.array([None, "", "b"])


def pair(values: list[str | None]) -> tuple[pa.Array, pa.DictionaryArray]:
    """A column of texts, and the same column encoded, as a slice of a longer one."""
    longer = dictionary.dictionary_encoded(pa.array(["a first one", *values, None], pa.string()))
    assert longer is not None
    return pa.array(values, pa.string()), longer.slice(1, len(values))


@given(values=st.lists(TEXTS, max_size=300), data=st.data())
def test_every_function_accepts_plain_and_encoded_text(
    values: list[str | None], data: st.DataObject
) -> None:
    plain, few = pair(values)
    n = len(values)
    at = np.array(data.draw(st.lists(st.integers(0, n - 1), max_size=150)) if n else [], np.int64)
    keep = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)), np.bool_)
    start, stop = sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n))))

    def same(ask: Callable[[Any], Any]) -> None:
        assert comparable(ask(plain)) == comparable(ask(few))

    same(lambda column: rows.to_pylist(column, "string"))
    same(lambda column: rows.to_arrow(column, "string"))
    same(lambda column: rows.from_arrow(column, "string"))
    same(lambda column: to_python_values(column, "string"))
    same(lambda column: encode_column(column, "string"))
    same(lambda column: rows.take(column, at))
    same(lambda column: rows.mask(column, keep))
    same(lambda column: rows.slice_(column, start, stop))
    same(lambda column: rows.concat([column, ODD, rows.take(column, at)], "string"))
    same(lambda column: rows.concat([column, column], "string"))
    same(rows.null_mask)
    same(lambda column: rows.equal(column, plain, "string"))
    same(lambda column: rows.equal(plain, column, "string"))
    same(lambda column: order_codes(column, "string"))
    same(lambda column: sort_indices([column], ["string"]))
    same(lambda column: [codes(slice(0, n)) for codes in exact_codes(column, "string") or ()])
    many = -(-200 // n) if n else 0
    for times in (1, many):
        same(lambda column, times=times: hashes_of([column] * times))
        same(lambda column, times=times: hashes_of([column] * times, np.arange(n * times)))


def hashes_of(columns: list[Any], index: Any = None) -> Any:
    """The hashes of concatenated columns between others."""
    column = rows.concat(columns, "string")
    if index is not None:
        column = rows.take(column, index)
    n = len(column)
    return rows.hash_columns([np.arange(n), column, column], ["bigint", "string", "string"], n)


@pytest.mark.parametrize("values", [["a", "bc", ""], ["a", None, "bc"]])
def test_first_column_has_hashes_of_its_texts(values: list[str | None]) -> None:
    plain, column = pair(values * 200)
    for types, others in ((["string"], []), (["string", "bigint"], [np.arange(600)])):
        expected = rows.hash_columns([plain, *others], types, 600)
        assert rows.hash_columns([column, *others], types, 600).tolist() == expected.tolist()


def comparable(value: Any) -> Any:
    """A result in a comparable form."""
    if isinstance(value, list):
        return [comparable(each) for each in value]
    if isinstance(value, pa.DictionaryArray):
        return value.to_pylist()
    return value.tolist() if isinstance(value, np.ndarray | pa.Array) else value


def test_concat_and_take_keep_codes() -> None:
    first, second = pair(["a", None, "b"] * 2000)[1], pair(["b", "c", ""] * 2000)[1]
    joined = rows.concat([first, second], "string")
    assert isinstance(joined, pa.DictionaryArray)
    assert joined.to_pylist() == [*["a", None, "b"] * 2000, *["b", "c", ""] * 2000]
    assert isinstance(rows.take(joined, np.arange(5000)), pa.DictionaryArray)
    few = [pair([f"{start}-{i % 200}" for i in range(6000)])[1] for start in (0, 1)]
    plain = rows.concat(few, "string")
    assert not isinstance(plain, pa.DictionaryArray), "400 texts have no code of a byte"
    assert plain.to_pylist() == few[0].to_pylist() + few[1].to_pylist()


def test_equal_columns_have_equal_bytes_in_files() -> None:
    values = ["b", None, "a", ""] * 10
    other = dictionary.dictionary_encoded(pa.array(["unused", "", "a", *values]))
    assert other is not None
    joined = rows.concat([other.slice(3, 5), other.slice(8)], "string")
    for column in (
        pair(values)[1],
        other.slice(3),
        dictionary.dictionary_encoded(rows.to_arrow(joined, "string")),
    ):
        assert column is not None
        codes, texts = dictionary.sorted_dictionary(column)
        assert texts == ["", "a", "b"]
        assert codes.to_pylist() == [2, None, 1, 0] * 10


@pytest.mark.parametrize(
    ("count", "length", "there"), [(256, 1, True), (257, 1, False), (20, 4000, False)]
)
def test_column_is_encoded_if_texts_are_few_and_short(count: int, length: int, there: bool) -> None:
    values = [f"{i:03}" * length for i in range(count)]
    many = pa.array([values[0]] * 2000 + values)
    assert (dictionary.dictionary_encoded(many) is not None) == there
    early = pa.array(values + [values[0]] * 2000)
    assert (dictionary.dictionary_encoded(early) is not None) == there


def test_code_without_text_reads_as_empty() -> None:
    wrong = dictionary.dictionary_column(pa.array([0, 1, 255], pa.uint8()), ["a", "b"])
    assert rows.take(wrong, np.array([2, 0])).tolist() == ["", "a"]
    assert rows.take(wrong, np.arange(3).repeat(40)).to_pylist()[-1] == ""
    assert rows.to_arrow(wrong, "string").to_pylist() == ["a", "b", ""]


@pytest.mark.parametrize("count", [1, 100, 129, 200, 256])
@pytest.mark.parametrize("missing", [(), (0, 3)])
def test_few_rows_of_many_texts_are_those_of_arrow(count: int, missing: tuple[int, ...]) -> None:
    """A code is a byte without a sign: with one, a code above 127 stands for another text."""
    texts: list[str | None] = [f"text {i:03}" for i in range(count)] * 3
    for at in missing:
        texts[at % len(texts)] = None
    plain = pa.array(texts, pa.string())
    column = dictionary.dictionary_encoded(plain)
    assert column is not None
    for offset in (0, min(5, count)):
        own, shifted = plain.slice(offset), rows.slice_(column, offset, len(plain))
        for at in range(0, len(own), 7):
            index = np.arange(at, min(at + 7, len(own)))
            taken = rows.to_arrow(rows.take(shifted, index), "string")
            assert taken.to_pylist() == own.slice(at, len(index)).to_pylist()
