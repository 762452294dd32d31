"""Random plans over two wide inputs: operators of all kinds, with few columns read at the end.

A plan is a list of choices, so it can be built in any session; a choice beyond a list wraps around.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from nosync_nb import Collection
from nosync_nb.rows import Schema

Choice = tuple[str, int, int]
Plan = tuple[Choice, ...]

INPUTS = {
    "a": "k int, v int, s string, w bigint, t string, d date",
    "b": "k int, v int, x int, y string, z bigint",
}

STEPS = (
    "filter", "filter", "join", "join", "outer", "semi", "anti", "select", "compute", "concat",
    "distinct", "negate", "count", "sums", "top", "names", "except", "explode",
)  # fmt: skip
"""Joins and filters are more frequent, because planning is about them."""

JOINS = ("join", "outer", "semi", "anti")
JOINS_MAX = 3
"""The limit, because each join multiplies the rows."""

RAISING = ("divide", "overflow")

RULED = (
    "raising above a join", "above what raises", "above a raising filter", "above first rows",
    "above other names", "unread and raising", "some of distinct rows", "some of a difference",
    "some of a set difference", "above a loop", "some of a loop",
)  # fmt: skip
"""Cases of planning conditions; each is two or three steps."""

values = st.one_of(st.none(), st.integers(-1, 2))
texts = st.one_of(st.none(), st.sampled_from(["", "p", "q", "é"]))
rows = {
    "a": st.tuples(values, values, texts, values, texts, st.none()),
    "b": st.tuples(values, values, values, texts, values),
}
changes = st.lists(
    st.one_of(
        *(
            st.tuples(st.just(name), row, st.sampled_from([1, 1, 1, 2, -1]))
            for name, row in rows.items()
        )
    ),
    min_size=1,
    max_size=8,
)
"""Rows that are added and removed, also before they exist."""


def choices(words: Sequence[str]) -> st.SearchStrategy[Choice]:
    return st.tuples(st.sampled_from(words), st.integers(0, 11), st.integers(0, 11))


def plans(*, most: int = 7) -> st.SearchStrategy[Plan]:
    """Lists of choices; the last one keeps few rows, or few columns."""
    steps = st.lists(choices(STEPS), min_size=1, max_size=most)
    return st.tuples(steps, choices(("filter", "select"))).map(lambda both: (*both[0], both[1]))


def chains() -> st.SearchStrategy[Plan]:
    """Inner joins above one another, mostly by the first columns."""
    join = st.tuples(st.just("join"), st.integers(1, 2), st.integers(0, 1))
    more = st.one_of(join, join, join, choices(("filter", "select", "join")))
    joins = st.tuples(join, join, st.lists(more, max_size=2))
    above = choices(("filter", "select", "count"))
    return st.tuples(joins, above).map(lambda both: (*both[0][:2], *both[0][2], both[1]))


def ruled_chains() -> st.SearchStrategy[Plan]:
    """Three inputs or four joined by columns of one type, under a filter, which may raise."""
    join = choices(("chain",))
    joins = st.lists(join, min_size=2, max_size=3)
    above = choices(("filter", "divide", "divide"))
    return st.tuples(choices(("swap",)), joins, above).map(lambda p: (p[0], *p[1], p[2]))


def raising_plans() -> st.SearchStrategy[Plan]:
    """Plans with a step that some rows make raise, and filters above it."""
    parts = st.tuples(plans(most=3), choices(RAISING), st.lists(choices(STEPS), max_size=2))
    above = choices(("filter", "divide"))
    return st.tuples(parts, above).map(lambda all_: (*all_[0][0], all_[0][1], *all_[0][2], all_[1]))


def ruled_plans() -> st.SearchStrategy[Plan]:
    """Short plans that end in a case of a planning condition."""
    before = st.lists(choices(STEPS), max_size=1)
    return st.tuples(before, choices(RULED)).map(lambda both: (*both[0], both[1]))


Rows = dict[str, list[tuple[tuple[Any, ...], int]]]

few = st.sampled_from([None, 0, 0, 1])
states: st.SearchStrategy[Rows] = st.fixed_dictionaries(
    {
        name: st.lists(
            st.tuples(
                st.tuples(
                    *(
                        few if t in ("int", "bigint") else texts if t == "string" else st.none()
                        for _, t in Schema.parse(ddl).fields
                    )
                ),
                st.sampled_from([1, 1, 2, -1]),
            ),
            min_size=2,
            max_size=6,
        )
        for name, ddl in INPUTS.items()
    }
)
"""Rows of both inputs with their counts: zeros and nulls more often than not."""


def described(plan: Plan, of: dict[str, Collection]) -> Collection:
    """Builds a plan: each step reads the last collection, and perhaps an earlier one."""
    made, joins = [of["a"], of["b"]], 0
    for number, (word, one, other) in enumerate(plan):
        joins += word in JOINS
        if joins > JOINS_MAX and word in JOINS:
            continue
        source = made[-1] if one % 4 else made[one // 4 % len(made)]
        made.append(_step(word, source, made[other % len(made)], one, other, number))
    return made[-1]


def _step(
    word: str, source: Collection, beside: Collection, one: int, other: int, number: int
) -> Collection:
    names = source.schema.names
    column, second = names[one % len(names)], names[other % len(names)]
    numbers = [n for n, t in source.schema.fields if t in ("int", "bigint")]
    if word in RULED:
        return _ruled(word, source, beside, one, other, number)
    match word:
        case "filter":
            return source.filter(_predicate(column, second, one + other, numbers))
        case "select":
            return source.select(*dict.fromkeys([second, column]))
        case "compute":
            return source.with_columns({f"c{number}": f"coalesce({column}, {column}) is null"})
        case "divide" | "overflow" if numbers:
            value = numbers[one % len(numbers)]
            sql = f"6 div {value}" if word == "divide" else f"cast({value} as tinyint) * 127Y"
            if other % 2:
                return source.filter(f"{sql} > 1")
            return source.with_columns({f"r{number}": sql})
        case "swap":
            return _swapped(source, one)
        case "chain":
            return _joined("join", source, _swapped(beside, one), one, other, number)
        case _ if word in JOINS:
            return _joined(word, source, beside, one, other, number)
        case "concat":
            return source.concat(source.filter(f"{column} is null"))
        case "except":
            return source.except_all(source.filter(f"{column} is not null"))
        case "distinct":
            return source.distinct()
        case "negate":
            return source.negate()
        case "count":
            return source.group_by(column).agg(**{f"n{number}": "count(*)"})
        case "sums" if numbers:
            value = numbers[other % len(numbers)]
            keys = () if one % 3 == 0 else (column,)
            sums = {f"n{number}": f"sum({value})", f"m{number}": f"max({second})"}
            return source.group_by(*keys).agg(**sums)
        case "top":
            return source.group_by(column).top(2, by=second)
        case "explode" if numbers:
            some = f"filter(array({numbers[one % len(numbers)]}, 1), x -> x > 0)"
            return source.flat_map(f"posexplode_outer({some}) AS (p{number}, x{number})")
    return source.rename({column: f"e{number}"})


def _ruled(
    word: str, source: Collection, beside: Collection, one: int, other: int, number: int
) -> Collection:
    """One of `RULED`, over a part without other readers."""
    names = source.schema.names
    column, second = names[one % len(names)], names[other % len(names)]
    wide = source.with_columns({f"w{number}": f"coalesce({column}, {column}) is null"})
    part = wide.distinct()
    numbers = [n for n, t in source.schema.fields if t in ("int", "bigint")]
    if not numbers:
        return part.select(column)
    value = numbers[(one + other) % len(numbers)]
    raising, asked = f"6 div {value} > 1", _predicate(column, second, other, numbers)
    match word:
        case "raising above a join":
            return _joined("join", part, beside, one, other, number).filter(raising)
        case "above what raises":
            return part.with_columns({f"r{number}": f"6 div {value}"}).filter(asked)
        case "above a raising filter":
            return part.filter(raising).filter(asked)
        case "above first rows":
            return part.group_by(column).top(1, by=second).filter(asked)
        case "above other names":
            return _swapped(part, one).filter(asked)
        case "unread and raising":
            return part.with_columns({f"r{number}": f"6 div {value}"}).select(column)
        case "some of distinct rows":
            return part.select(column)
        case "some of a difference":
            return wide.except_all(wide.filter(asked).negate()).select(column)
        case "some of a set difference":
            return wide.subtract(wide.filter(f"{column} is not null")).select(column)
    loop = wide.iterate(lambda v: v.filter(f"{value} < 2").distinct(), rounds=1)
    return loop.filter(asked) if word == "above a loop" else loop.select(column)


def _swapped(source: Collection, one: int) -> Collection:
    """Exchanges the names of two columns of one type."""
    for mine, kind in source.schema.fields[one % 2 :]:
        for theirs, same in source.schema.fields:
            if kind == same and mine != theirs:
                other = {mine: theirs, theirs: mine}
                return source.select(*(f"{other.get(n, n)} AS {n}" for n in source.schema.names))
    return source


def _predicate(column: str, second: str, which: int, numbers: Sequence[str]) -> str:
    texts = [f"{column} is not null", f"{column} is null or {second} is not null"]
    if numbers:
        value = numbers[which % len(numbers)]
        texts += [f"{value} > 0", f"{value} <= 1 and {column} is not null", f"not {value} = 0"]
    return texts[which % len(texts)]


def _joined(
    word: str, source: Collection, beside: Collection, one: int, other: int, number: int
) -> Collection:
    pairs = [
        (mine, theirs)
        for mine, kind in source.schema.fields
        for theirs, same in beside.schema.fields
        if kind == same
    ]
    if not pairs:
        return source.distinct()
    mine, theirs = pairs[(one + other) % len(pairs)]
    renamed = beside.rename({name: f"{name}_{number}" for name in beside.schema.names})
    kinds: dict[str, Any] = {"join": "inner", "outer": ("left", "right", "full")[one % 3]}
    return source.join(renamed, on={mine: f"{theirs}_{number}"}, how=kinds.get(word, word))
