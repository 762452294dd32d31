"""Random SELECT statements that Spark and DuckDB read alike, and the changes of their tables.

A statement nests to some depth: tables, subqueries and joins in FROM, predicates with EXISTS, IN
and scalar subqueries that refer to the queries around them, GROUP BY, HAVING, window functions, set
operations and LIMIT. Every order is total up to equal rows, and says where nulls go. Numbers are
small integers, and only averages are fractions.
"""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

TABLES = {"t": "a int, b string, c int", "u": "a int, d int", "v": "k int, b string, d int"}
"""Inputs of the statements; each column has nulls and duplicates."""

_COLUMNS = {
    "t": [("a", "n"), ("b", "s"), ("c", "n")],
    "u": [("a", "n"), ("d", "n")],
    "v": [("k", "n"), ("b", "s"), ("d", "n")],
}
_STRINGS = [None, "x", "y", "z", ""]
_COMPARED = ["=", "<>", "<", "<=", ">", ">="]


class Field(NamedTuple):
    """A column that expressions may read: its reference and its kind, number or string."""

    ref: str
    kind: str


Scope = list[Field]


def random_row(rng: Random, table: str) -> tuple[Any, ...]:
    """A row with few values, so that keys repeat."""
    return tuple(
        (None if rng.random() < 0.15 else rng.randrange(5 if i == 0 else 8))
        if kind == "n"
        else rng.choice(_STRINGS)
        for i, (_, kind) in enumerate(_COLUMNS[table])
    )


class Selects:
    """Makes statements.

    Args:
        deepest: how deep queries nest.
    """

    def __init__(self, rng: Random, *, deepest: int = 4) -> None:
        self._rng, self._deepest, self._names = rng, deepest, 0
        self._in_correlated_sets = 0

    def statement(self) -> str:
        """A statement, with an alias for every column."""
        rng = self._rng
        if rng.random() < 0.1:
            name, (inner, kinds) = self._name("w"), self.query(self._deepest - 1, [])
            columns = [f"{name}.c{i}" for i in range(len(kinds))]
            scope = [Field(c, k) for c, k in zip(columns, kinds, strict=True)]
            other = self._name("w")
            texts = [f"{c} as c{i}" for i, c in enumerate(columns)]
            same = f"{other}.c0 = {name}.c0"
            where = self.predicate(scope, self._deepest - 2)
            return (
                f"with {name} as ({inner}) select {', '.join(texts)} from {name}"
                f" left join {name} as {other} on {same} where {where}"
            )
        return self.query(self._deepest, [])[0]

    def predicate_case(self) -> tuple[str, str, str]:
        """The columns, the tables and a predicate, for `p`, `not p` and `p is null`."""
        source, scope = self._source(self._deepest - 1, [])
        chosen = self._rng.sample(scope, min(len(scope), 3))
        columns = ", ".join(f"{f.ref} as c{i}" for i, f in enumerate(chosen))
        return columns, source, self.predicate(scope, self._deepest - 1, inside=True)

    # -- queries -----------------------------------------------------------------------------------

    def query(
        self, depth: int, outer: Scope, kinds: list[str] | None = None
    ) -> tuple[str, list[str]]:
        """A query and the kinds of its columns, which are named c0, c1 and so on."""
        rng = self._rng
        if depth > 1 and rng.random() < 0.15:
            self._in_correlated_sets += bool(outer)
            left, kinds = self.query(depth - 1, outer, kinds)
            right, _ = self.query(depth - 1, outer, kinds)
            self._in_correlated_sets -= bool(outer)
            operator = rng.choice(["union", "union all", "except", "intersect", "except all"])
            name = self._name("s")
            texts = [f"{name}.c{i} as c{i}" for i in range(len(kinds))]
            return f"select {', '.join(texts)} from ({left} {operator} {right}) as {name}", kinds
        kinds = kinds or [rng.choice("nns") for _ in range(rng.choice([1, 2, 2, 3]))]
        source, scope = self._source(depth, outer)
        where = f" where {self.predicate(scope + outer, depth - 1)}" if rng.random() < 0.5 else ""
        pick = rng.random()
        if pick < 0.3:
            text = self._grouped(source, scope, where, kinds, depth)
        elif pick < 0.5:
            text = self._windowed(source, scope, where, kinds)
        else:
            texts = [
                f"{self.value(k, scope, outer, depth - 1)} as c{i}" for i, k in enumerate(kinds)
            ]
            distinct = "distinct " if rng.random() < 0.15 else ""
            text = f"select {distinct}{', '.join(texts)} from {source}{where}"
        if rng.random() < 0.12:
            orders = ", ".join(f"c{i} {self._direction()}" for i in range(len(kinds)))
            offset = f" offset {rng.randrange(3)}" if rng.random() < 0.3 else ""
            name = self._name("o")
            text = (
                f"select * from (select * from ({text}) as {name}"
                f" order by {orders} limit {rng.randrange(1, 6)}{offset}) as {name}"
            )
        return text, kinds

    def _source(self, depth: int, outer: Scope) -> tuple[str, Scope]:
        """A FROM clause, and the columns that it gives."""
        rng = self._rng
        left, scope = self._relation(depth, outer)
        if rng.random() > 0.4:
            return left, scope
        if depth > 1 and rng.random() < 0.2:
            inner, kinds = self.query(depth - 1, scope)
            name = self._name("l")
            more = [Field(f"{name}.c{i}", k) for i, k in enumerate(kinds)]
            join = rng.choice(["cross join lateral", "left join lateral"])
            on = " on true" if join.startswith("left") else ""
            return f"{left} {join} ({inner}) as {name}{on}", scope + more
        right, more = self._relation(depth, outer)
        kind = rng.choice(["join", "join", "left join", "right join", "full join"])
        return f"{left} {kind} {right} on {self._condition(scope, more)}", scope + more

    def _relation(self, depth: int, outer: Scope) -> tuple[str, Scope]:
        if depth > 1 and self._rng.random() < 0.35:
            inner, kinds = self.query(depth - 1, [])
            name = self._name("q")
            return f"({inner}) as {name}", [Field(f"{name}.c{i}", k) for i, k in enumerate(kinds)]
        table = self._rng.choice([*_COLUMNS])
        name = self._name(table)
        return f"{table} as {name}", [Field(f"{name}.{c}", k) for c, k in _COLUMNS[table]]

    def _condition(self, left: Scope, right: Scope) -> str:
        """The condition of a join: mostly an equality and something else."""
        rng = self._rng
        numbers = [[f.ref for f in side if f.kind == "n"] for side in (left, right)]
        strings = [[f.ref for f in side if f.kind == "s"] for side in (left, right)]
        found = []
        if all(numbers) and rng.random() < 0.8:
            found.append(" = ".join(map(rng.choice, numbers)))
        if all(strings) and (not found or rng.random() < 0.2):
            found.append(" = ".join(map(rng.choice, strings)))
        if not found or rng.random() < 0.3:
            found.append(self._simple(left + right))
        return " and ".join(found)

    def _grouped(self, source: str, scope: Scope, where: str, kinds: list[str], depth: int) -> str:
        rng = self._rng
        count = rng.choice([0, 1, 1, 2])
        if self._in_correlated_sets:  # DuckDB 2.0 drops totals of no rows there, if a key is null
            count = max(count, 1)
        keys = rng.sample(scope, min(len(scope), count))
        texts = []
        for i, kind in enumerate(kinds):
            same = [f for f in keys if f.kind == kind]
            if same and rng.random() < 0.5:
                texts.append(f"{rng.choice(same).ref} as c{i}")
            else:
                texts.append(f"{self._aggregate(kind, scope)} as c{i}")
        group = ""
        if keys:
            listed = ", ".join(f.ref for f in keys)
            form = rng.choice(["{}", "{}", "{}", "rollup({})", "cube({})"])
            group = f" group by {form.format(listed)}"
        having = " having count(*) > 0" if "(" in group else ""  # Spark has no total of no rows
        if not having and rng.random() < 0.3:
            compared = f"{rng.choice(_COMPARED)} {rng.randrange(6)}"
            having = f" having {self._aggregate('n', scope)} {compared}"
            if depth > 1 and keys and rng.random() < 0.3:
                having += f" or {self._subquery_predicate(keys, depth - 1, inside=True)}"
        return f"select {', '.join(texts)} from {source}{where}{group}{having}"

    def _aggregate(self, kind: str, scope: Scope) -> str:
        rng = self._rng
        same = [f.ref for f in scope if f.kind == kind]
        if kind == "s":
            return f"{rng.choice(['min', 'max'])}({rng.choice(same) if same else repr('q')})"
        if not same or rng.random() < 0.2:
            return "count(*)"
        name = rng.choice(["sum", "min", "max", "count", "count(distinct", "sum(distinct"])
        call = f"{name} {rng.choice(same)})" if "(" in name else f"{name}({rng.choice(same)})"
        if rng.random() < 0.15:
            call += f" filter (where {self._simple(scope)})"
        return call

    def _windowed(self, source: str, scope: Scope, where: str, kinds: list[str]) -> str:
        texts: list[str] = []
        for i, kind in enumerate(kinds):
            if kind == "n" or self._rng.random() < 0.5:
                # equal rows have no order, so one column at most depends on the places of rows
                texts.append(f"{self._window(kind, scope, placed=not texts)} as c{i}")
            else:
                texts.append(f"{self._leaf(kind, scope)} as c{i}")
        return f"select {', '.join(texts)} from {source}{where}"

    def _window(self, kind: str, scope: Scope, *, placed: bool) -> str:
        rng = self._rng
        keys = rng.sample(scope, rng.choice([0, 1, 1, min(2, len(scope))]))
        partition = f"partition by {', '.join(f.ref for f in keys)} " if keys else ""
        total = rng.sample(scope, len(scope))
        order = "order by " + ", ".join(f"{f.ref} {self._direction()}" for f in total)
        first = f"order by {total[0].ref} {self._direction()}"
        same = [f.ref for f in scope if f.kind == kind]
        value = rng.choice(same) if same else ("7" if kind == "n" else "'q'")
        pick = rng.choice([0, 1, 2, 3, 4, 5, 6] if placed else [2, 4, 5])
        pick = pick if kind == "n" else min(pick, 2)
        if pick == 0:
            call = f"{rng.choice(['lag', 'lead'])}({value}, {rng.randrange(1, 3)})"
            return f"{call} over ({partition}{order})"
        if pick == 1:
            call = f"{rng.choice(['first_value', 'last_value', 'min', 'max'])}({value})"
            return f"{call} over ({partition}{order} {self._frame()})"
        if pick == 2:
            return f"{rng.choice(['min', 'max'])}({value}) over ({partition})"
        if pick == 3:
            name = rng.choice(["row_number()", f"ntile({rng.randrange(1, 4)})"])
            return f"{name} over ({partition}{order})"
        if pick == 4:
            name = rng.choice(["rank()", "dense_rank()"])
            return f"{name} over ({partition}{first})"
        call = f"{rng.choice(['sum', 'count'])}({value})"
        if pick == 5:
            return f"{call} over ({partition}{rng.choice([first, order])})"
        return f"{call} over ({partition}{order} {self._frame()})"

    def _frame(self) -> str:
        rng = self._rng
        n, m = rng.randrange(3), rng.randrange(3)
        return rng.choice(
            [
                f"rows {n} preceding",
                f"rows between {n} preceding and {m} following",
                "rows between unbounded preceding and current row",
                "rows between current row and unbounded following",
                f"rows between {n + m} preceding and {m} preceding",
                f"rows between {n} following and {n + m} following",
                "rows between unbounded preceding and unbounded following",
            ]
        )

    # -- expressions -------------------------------------------------------------------------------

    def value(self, kind: str, scope: Scope, outer: Scope, depth: int) -> str:
        """An expression of a kind."""
        rng, pick = self._rng, self._rng.random()
        if depth > 1 and pick < 0.15:
            return self._scalar(kind, scope + outer, depth - 1)
        if pick < 0.25:
            then, other = self._leaf(kind, scope), self._leaf(kind, scope + outer)
            return (
                f"case when {self.predicate(scope + outer, depth - 1)} then {then} else {other} end"
            )
        if pick < 0.35:
            return f"coalesce({self._leaf(kind, scope)}, {self._leaf(kind, scope)})"
        if pick < 0.5 and kind == "n":
            return f"{self._leaf(kind, scope)} {rng.choice('+-')} {self._leaf(kind, scope + outer)}"
        if pick < 0.5:
            return f"{self._leaf(kind, scope)} || {self._leaf(kind, scope)}"
        return self._leaf(kind, scope)

    def _leaf(self, kind: str, scope: Scope) -> str:
        same = [f.ref for f in scope if f.kind == kind]
        if same and self._rng.random() < 0.85:
            return self._rng.choice(same)
        return str(self._rng.randrange(6)) if kind == "n" else f"'{self._rng.choice('xyz')}'"

    def _scalar(self, kind: str, outer: Scope, depth: int) -> str:
        """A subquery with at most one row."""
        source, scope = self._source(depth, [])
        where = self._correlated(scope, outer, depth)
        call = self._aggregate(kind, scope)
        if kind == "n" and self._rng.random() < 0.3:
            call = f"coalesce({call}, -1)"
        return f"(select {call} from {source} where {where})"

    def _correlated(self, scope: Scope, outer: Scope, depth: int) -> str:
        rng, found = self._rng, []
        kind = rng.choice("nns")
        own = [f.ref for f in scope if f.kind == kind]
        others = [f.ref for f in outer if f.kind == kind]
        if own and others and rng.random() < 0.8:
            operator = rng.choice(["=", "=", "=", rng.choice(_COMPARED)])
            found.append(f"{rng.choice(own)} {operator} {rng.choice(others)}")
        joined = rng.choice([" and ", " and ", " or "])
        if not found or rng.random() < 0.4:
            inside = joined == " or "
            found.append(self.predicate(scope + outer[-3:], depth - 1, inside=inside))
        return joined.join(found)

    def predicate(self, scope: Scope, depth: int, *, inside: bool = False) -> str:
        """A condition with three values.

        Args:
            inside: whether it is a part of another expression.
        """
        rng, pick = self._rng, self._rng.random()
        if depth > 0 and pick < 0.15:
            operator = rng.choice(["and", "or"])
            inside = inside or operator == "or"
            sides = [self.predicate(scope, depth - 1, inside=inside) for _ in range(2)]
            return f"({f' {operator} '.join(sides)})"
        if pick < 0.22:
            return f"not ({self.predicate(scope, depth - 1, inside=True)})"
        if depth > 0 and pick < 0.5:
            return self._subquery_predicate(scope, depth, inside=inside)
        return self._simple(scope)

    def _simple(self, scope: Scope) -> str:
        rng, kind = self._rng, self._rng.choice("nns")
        left, pick = self._leaf(kind, scope), rng.randrange(6)
        if pick == 0:
            return f"{left} is {rng.choice(['', 'not '])}null"
        if pick == 1:
            listed = ", ".join([self._leaf(kind, []), self._leaf(kind, scope)])
            return f"{left} {rng.choice(['', 'not '])}in ({listed})"
        if pick == 2 and kind == "n":
            return f"{left} between {self._leaf(kind, scope)} and {rng.randrange(3, 7)}"
        return f"{left} {rng.choice(_COMPARED)} {self._leaf(kind, scope)}"

    def _subquery_predicate(self, scope: Scope, depth: int, *, inside: bool) -> str:
        """EXISTS, IN or a comparison; inside of another expression, IN is not null in Spark."""
        rng, pick = self._rng, self._rng.randrange(3)
        if pick == 0:
            source, inner = self._source(depth, [])
            negated = rng.choice(["", "not "])
            where = self._correlated(inner, scope, depth)
            return f"{negated}exists (select 1 from {source} where {where})"
        kind = rng.choice("nns")
        if pick == 1:
            inner, _ = self.query(depth, scope[-3:] if rng.random() < 0.5 else [], [kind])
            text = f"{self._leaf(kind, scope)} {rng.choice(['', 'not '])}in ({inner})"
            return f"coalesce({text}, false)" if inside else text
        compared = f"{self._leaf(kind, scope)} {rng.choice(_COMPARED)}"
        return f"{compared} {self._scalar(kind, scope, depth)}"

    def _direction(self) -> str:
        return self._rng.choice(
            ["asc nulls first", "desc nulls last", "asc nulls last", "desc nulls first"]
        )

    def _name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"


class Mirror:
    """The rows of the tables, in lists and in DuckDB."""

    def __init__(self, db: Any) -> None:
        self.db = db
        self.rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in TABLES}
        for name, ddl in TABLES.items():
            db.execute(f"create table {name} ({ddl.replace('string', 'varchar')})")

    def change(self, rng: Random, most: int) -> list[tuple[str, tuple[Any, ...], int]]:
        """Random inserts and removals of one epoch, which are applied to the lists."""
        found = []
        for name, rows in self.rows.items():
            for _ in range(rng.randrange(most + 1)):
                if rows and rng.random() < 0.45:
                    found.append((name, rows.pop(rng.randrange(len(rows))), -1))
                else:
                    rows.append(random_row(rng, name))
                    found.append((name, rows[-1], 1))
        return found

    def fill(self) -> None:
        """Writes the lists to DuckDB."""
        for name, rows in self.rows.items():
            self.db.execute(f"delete from {name}")
            if rows:
                marks = ", ".join("?" * len(rows[0]))
                self.db.executemany(f"insert into {name} values ({marks})", rows)

    def snapshot(self) -> dict[str, list[tuple[Any, ...]]]:
        return {name: [*rows] for name, rows in self.rows.items()}

    def query(self, sql: str) -> list[str]:
        return comparable(self.db.execute(sql).fetchall())


def comparable(rows: Any) -> list[str]:
    """The rows as sorted texts."""
    return sorted(repr(tuple(row)) for row in rows)
