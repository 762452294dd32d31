"""Random programs over collections of two integers: built as collections, and run by the model.

A program is a tree of tuples. Everything in it has the columns `c0 int, c1 int`, so that any
operator can follow any other. The body of a loop ends in `distinct`, and loops are bounded, so
that programs end and counts stay small.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hypothesis import strategies as st
from models import model
from models.model import Bag, Row

from nosync_nb import Collection

Program = tuple[Any, ...]
COLUMNS = "c0 int, c1 int"
VALUES = st.sampled_from([0, 1, 2, 3, 4, None])
ROWS = st.tuples(VALUES, VALUES)


def count_rows(key: Any, group: list[Any]) -> list[tuple[int]]:
    """A function for reduce: one row that depends on the whole group."""
    return [(sum((row.c1 or 0) + 1 for row in group) % 4,)]


def some_copies(count: int) -> int:
    return min(count // 2, 2)


def _parity(row: Row) -> Row:
    return (*row, None if row[1] is None else row[1] % 2)


def _modulo(row: Row) -> Row:
    return (row[0], None if row[1] is None else (row[1] + 1) % 4)


def _windowed(held: Bag, descending: bool, compute: Callable[[list[Any], int], Any]) -> Bag:
    """Replaces c1 by a function of the c1 of the group, in order, and of the row's position."""
    found = []
    for group in model.groups(held, [0]).values():
        ordered = sorted(model.rows(group), key=lambda r: model.order(r[1]), reverse=descending)
        values = [row[1] for row in ordered]
        found += [(row[0], compute(values, i)) for i, row in enumerate(ordered)]
    return model.bag(found)


UNARY: dict[str, tuple[Callable[[Collection], Collection], Callable[[Bag], Bag]]] = {
    "filter": (
        lambda c: c.filter("c0 > 0"),
        lambda b: model.filtered(b, lambda r: (r[0] or 0) > 0),
    ),
    "swap": (
        lambda c: c.select("c1 as c0", "c0 as c1"),
        lambda b: model.mapped(b, lambda r: (r[1], r[0])),
    ),
    "shift": (
        lambda c: c.select("c0", "(c1 + 1) % 4 as c1"),
        lambda b: model.mapped(b, _modulo),
    ),
    "explode": (
        lambda c: c.select("c0", "explode(filter(array(c1, c0), x -> x > 1)) as c1"),
        lambda b: model.flat_mapped(b, lambda r: [(r[0], v) for v in r[::-1] if (v or 0) > 1]),
    ),
    "distinct": (lambda c: c.distinct(), model.distinct),
    "min": (
        lambda c: c.group_by("c0").agg(c1="min(c1)"),
        lambda b: model.aggregated(b, [0], [("min", 1)]),
    ),
    "count": (
        lambda c: c.group_by("c0").agg(n="count(*)").select("c0", "cast(n % 4 as int) as c1"),
        lambda b: model.mapped(
            model.aggregated(b, [0], [("count_star", 0)]), lambda r: (r[0], r[1] % 4)
        ),
    ),
    "total": (
        lambda c: c.agg(n="count(*)", least="min(c0)").select(
            "least as c0", "cast(n % 4 as int) as c1"
        ),
        lambda b: model.mapped(
            model.aggregated(b, [], [("count_star", 0), ("min", 0)]), lambda r: (r[1], r[0] % 4)
        ),
    ),
    "reduce": (
        lambda c: c.group_by("c0").reduce(count_rows, "c1 int"),
        lambda b: model.reduced(
            b, [0], lambda key, rows: [(sum((r[1] or 0) + 1 for r in rows) % 4,)]
        ),
    ),
    "multiplicity": (
        lambda c: c.multiplicity().select("c0", "cast(count % 4 as int) as c1"),
        lambda b: model.mapped(model.multiplicity(b), lambda r: (r[0], r[2] % 4)),
    ),
    "top": (
        lambda c: c.group_by("c0").top(2, by="c1 desc"),
        lambda b: model.top(b, [0], 2, [(1, True)]),
    ),
    "later": (
        lambda c: c.group_by().top(3, by="c1 % 2, c0", offset=1),
        lambda b: model.mapped(
            model.top(model.mapped(b, _parity), [], 3, [(2, False), (0, False)], 1),
            lambda r: r[:2],
        ),
    ),
    "ranked": (
        lambda c: c.window("c0", "c1 desc").with_columns(c1="cast(dense_rank() % 4 as int)"),
        lambda b: _windowed(b, True, lambda v, i: (list(dict.fromkeys(v)).index(v[i]) + 1) % 4),
    ),
    "numbered": (
        lambda c: c.window("c0", "c1").with_columns(c1="cast(row_number() % 4 as int)"),
        lambda b: _windowed(b, False, lambda v, i: (i + 1) % 4),
    ),
    "before": (
        lambda c: c.window("c0", "c1").with_columns(c1="lag(c1)"),
        lambda b: _windowed(b, False, lambda v, i: v[i - 1] if i else None),
    ),
    "threshold": (lambda c: c.threshold(some_copies), lambda b: model.threshold(b, some_copies)),
}


def _compose(a: Collection, b: Collection) -> Collection:
    return (
        a.rename({"c0": "a0", "c1": "a1"}).join(b, on={"a1": "c0"}).select("a0 as c0", "c1 as c1")
    )


def _outer(how: str) -> tuple[Any, Any]:
    """An outer join that keeps one of the two values."""
    return (
        lambda a, b: a.join(b.rename({"c1": "d1"}), on="c0", how=how).select(
            "c0", "coalesce(d1, c1) as c1"
        ),
        lambda a, b: model.mapped(
            model.join(a, b, [(0, 0)], how, (2, 2)),
            lambda r: (r[0], r[1] if r[2] is None else r[2]),
        ),
    )


BINARY: dict[
    str, tuple[Callable[[Collection, Collection], Collection], Callable[[Bag, Bag], Bag]]
] = {
    "concat": (lambda a, b: a.concat(b), lambda a, b: model.concat(a, b)),
    "except_all": (lambda a, b: a.except_all(b), model.except_all),
    "subtract": (lambda a, b: a.subtract(b), model.subtract),
    "semi": (
        lambda a, b: a.join(b, on="c0", how="semi"),
        lambda a, b: model.join(a, b, [(0, 0)], "semi", (2, 2)),
    ),
    "anti": (
        lambda a, b: a.join(b, on="c0", how="anti"),
        lambda a, b: model.join(a, b, [(0, 0)], "anti", (2, 2)),
    ),
    "left": _outer("left"),
    "right": _outer("right"),
    "full": _outer("full"),
    "compose": (
        _compose,
        lambda a, b: model.mapped(
            model.join(a, b, [(1, 0)], "inner", (2, 2)), lambda r: (r[0], r[2])
        ),
    ),
}


@st.composite
def programs(draw: st.DrawFn, inputs: Sequence[str], depth: int = 6, variables: int = 0) -> Program:
    """Programs over named inputs and the variables of the loops around them.

    Args:
        depth: of the tree, at most.
    """
    kinds = ["input"] + ["variable"] * (2 if variables else 0)
    if depth > 1:
        kinds += ["unary", "binary"] * 2
    if depth > 2:
        kinds += ["iterate"] * 3
    kind = draw(st.sampled_from(kinds))
    if kind == "input":
        return ("input", draw(st.sampled_from(list(inputs))))
    if kind == "variable":
        return ("variable", draw(st.integers(0, variables - 1)))
    below = programs(inputs, depth - 1, variables)
    if kind == "unary":
        return (draw(st.sampled_from(sorted(UNARY))), draw(below))
    if kind == "binary":
        return (draw(st.sampled_from(sorted(BINARY))), draw(below), draw(below))
    body = draw(programs(inputs, depth - 2, variables + 1))
    if not uses(body, variables):
        body = ("concat", ("variable", variables), body)
    if draw(st.booleans()):  # as most loops do: one step from the current rows, plus the start
        step = ("compose", body, ("input", draw(st.sampled_from(list(inputs)))))
        body = ("concat", step, draw(programs(inputs, max(1, depth - 4), variables + 1)))
        body = (draw(st.sampled_from(["distinct", "min", "count", "swap"])), body)
    return ("iterate", draw(below), body, draw(st.integers(1, 6)))


def uses(program: Program, variable: int) -> bool:
    if program[0] == "variable":
        return bool(program[1] == variable)
    return any(uses(p, variable) for p in program[1:] if isinstance(p, tuple))


def loops(program: Program) -> int:
    return (program[0] == "iterate") + sum(loops(p) for p in program[1:] if isinstance(p, tuple))


def build(
    program: Program, inputs: Mapping[str, Collection], variables: Sequence[Collection] = ()
) -> Collection:
    """Builds the collection of a program."""
    op, *rest = program
    if op == "input":
        return inputs[rest[0]]
    if op == "variable":
        return variables[rest[0]]
    if op == "iterate":
        source, body, rounds = rest
        return build(source, inputs, variables).iterate(
            lambda value: build(body, inputs, [*variables, value]).distinct(), rounds=rounds
        )
    parts = [build(p, inputs, variables) for p in rest]
    return UNARY[op][0](*parts) if op in UNARY else BINARY[op][0](*parts)


def run(program: Program, inputs: Mapping[str, Bag], variables: Sequence[Bag] = ()) -> Bag:
    """Computes a program from scratch."""
    op, *rest = program
    if op == "input":
        return inputs[rest[0]]
    if op == "variable":
        return variables[rest[0]]
    if op == "iterate":
        source, body, rounds = rest
        return model.iterated(
            run(source, inputs, variables),
            lambda value: model.distinct(run(body, inputs, [*variables, value])),
            rounds,
        )
    parts = [run(p, inputs, variables) for p in rest]
    return UNARY[op][1](*parts) if op in UNARY else BINARY[op][1](*parts)
