"""The parser of Spark's DDL: texts of types and of columns.

It knows the syntax of types, not their meaning. It returns types in canonical spelling, which is
that of Spark's lower-case simple strings.
"""

from __future__ import annotations

import re

from nosync_nb.errors import SchemaError

SCALARS = (
    "boolean",
    "tinyint",
    "smallint",
    "int",
    "bigint",
    "float",
    "double",
    "string",
    "binary",
    "date",
    "timestamp",
    "timestamp_ntz",
)
"""Types without parameters."""

CLOCK, CALENDAR = ("day", "hour", "minute", "second"), ("year", "month")
"""The units of intervals, from the greatest one."""


def interval_type(first: str, last: str) -> str:
    """Returns the interval type from one unit to another."""
    return f"interval {first}" if first == last else f"interval {first} to {last}"


def _spans(units: tuple[str, ...]) -> tuple[str, ...]:
    """Returns all interval types from one of the units to the same or a smaller one."""
    return tuple(interval_type(a, b) for place, a in enumerate(units) for b in units[place:])


DAY_TIMES = _spans(CLOCK)
"""Intervals that are stored in microseconds; their units determine how they are printed."""

YEAR_MONTHS = _spans(CALENDAR)
"""Intervals that are stored in months."""

INTERVALS = frozenset((*DAY_TIMES, *YEAR_MONTHS))

_SYNONYMS = {
    "bool": "boolean",
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "dec": "decimal",
    "numeric": "decimal",
    "timestamp_ltz": "timestamp",
}

_TOKEN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|('(?:[^'\\]|\\.)*')|(\w+)|([<>(),:]))")
_WORD = re.compile(r"[^\W\d]\w*\Z", re.ASCII)
"""The names that Spark accepts without backticks."""


def quote(name: str) -> str:
    """Returns a column name for DDL, in backticks unless it is a plain word."""
    return name if _WORD.match(name) else quoted(name)


def quoted(name: str) -> str:
    """Returns a column name in backticks, for any SQL text."""
    return "`" + name.replace("`", "``") + "`"


class TypeReader:
    """A parser of types and lists of fields, with a cursor over the tokens of a text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._at = 0
        self._next: tuple[str, str] = ("", "")
        self._advance()

    def _advance(self) -> None:
        """Moves to the next token `(kind, text)`; kinds are name, text, word, sign and end."""
        match = _TOKEN.match(self.text, self._at)
        if match is None:
            if self.text[self._at :].strip():
                self.fail(self.text[self._at :].strip()[0])
            self._next = ("end", "")
            return
        self._at = match.end()
        kind = ("name", "text", "word", "sign")[(match.lastindex or 1) - 1]
        self._next = (kind, match.group(match.lastindex or 1))

    def fail(self, seen: str) -> None:
        """Raises the error for an unexpected token."""
        raise SchemaError(
            f"cannot read {seen or 'the end'!r} in the columns or type {self.text!r}",
            hint="write Spark's DDL, such as 'name string, seats int, paid decimal(10,2)'",
        )

    def skip_sign(self, sign: str) -> bool:
        """Skips `sign` if it is the next token; returns True if it is."""
        if self._next != ("sign", sign):
            return False
        self._advance()
        return True

    def expect(self, sign: str) -> None:
        """Skips `sign`, which must be the next token."""
        if not self.skip_sign(sign):
            self.fail(self._next[1])

    def end(self) -> None:
        """Raises SchemaError unless all tokens are parsed."""
        if self._next[0] != "end":
            self.fail(self._next[1])

    def word(self) -> str:
        """Parses a name or word."""
        kind, text = self._next
        if kind not in ("name", "word"):
            self.fail(text)
        self._advance()
        return text.replace("``", "`") if kind == "name" else text

    def type(self) -> str:
        """Parses a type."""
        written = self.word()
        name = _SYNONYMS.get(written.lower(), written.lower())
        if name in SCALARS:
            return name
        if name == "decimal":
            return self._decimal()
        if name == "interval":
            return self._interval()
        if name == "array":
            self.expect("<")
            inner = self.type()
            self.expect(">")
            return f"array<{inner}>"
        if name == "map":
            self.expect("<")
            key = self.type()
            self.expect(",")
            value = self.type()
            self.expect(">")
            return f"map<{key},{value}>"
        if name == "struct":
            self.expect("<")
            fields = self.fields(">")
            return f"struct<{','.join(f'{quote(n)}:{t}' for n, t in fields)}>"
        raise SchemaError(
            f"unknown type {written!r} in {self.text!r}",
            hint=f"types are {', '.join(SCALARS)}, decimal(p,s), interval day to second, interval"
            " year to month, array<t>, struct<a:t>, map<k,v>",
        )

    def _interval(self) -> str:
        """Parses the units of an interval."""
        type_ = f"interval {self.word().lower()}"
        if self._next[0] == "word" and self._next[1].lower() == "to":
            self._advance()
            type_ += f" to {self.word().lower()}"
        if type_ not in INTERVALS:
            raise SchemaError(
                f"unknown type {type_!r} in {self.text!r}",
                hint=f"intervals are {', '.join((*YEAR_MONTHS, *DAY_TIMES))}",
            )
        return type_

    def _decimal(self) -> str:
        """Parses precision and scale, by default Spark's (10, 0)."""
        precision, scale = "10", "0"
        if self.skip_sign("("):
            precision = self.word()
            if self.skip_sign(","):
                scale = self.word()
            self.expect(")")
        if not (precision.isdigit() and scale.isdigit() and int(scale) <= int(precision) <= 38):
            raise SchemaError(
                f"decimal({precision},{scale}) is not within decimal(38,38)",
                hint="use at most 38 digits, and no more of them after the point: decimal(38,10)",
            )
        if int(precision) < 1:
            raise SchemaError(
                f"decimal({precision},{scale}) has no digits", hint="write decimal(10,2)"
            )
        return f"decimal({int(precision)},{int(scale)})"

    def fields(self, close: str) -> list[tuple[str, str]]:
        """Parses fields `name type` or `name: type`, up to `close`; to the end if it is empty."""
        fields: list[tuple[str, str]] = []
        while not (self.skip_sign(close) if close else self._next[0] == "end"):
            if fields:
                self.expect(",")
            name = self.word()
            self.skip_sign(":")
            fields.append((name, self.type()))
            self._skip_remarks()
        return fields

    def _skip_remarks(self) -> None:
        """Skips `not null` and `comment '...'`, which have no meaning for rows here."""
        while self._next[0] == "word" and self._next[1].lower() in ("not", "null", "comment"):
            self._advance()
            while self._next[0] == "text":
                self._advance()
