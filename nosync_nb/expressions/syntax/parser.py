"""Parses Spark SQL text to a syntax tree: one expression, perhaps with an alias.

sqlglot parses the text without knowing functions. Every call stays as it is written, so that it is
looked up in our table or left to Spark, and never rewritten. `agrees_with_spark` detects text that
sqlglot parses with another precedence than Spark; such text is left to Spark too.

Strings have the meaning of Spark's lexer: escapes, raw strings, doubled quotes, adjacent strings.
sqlglot treats escapes differently. So strings with escapes are replaced by markers before the text
is parsed, and the markers are replaced by the values of the strings in the tree.

The accepted nesting depth does not depend on the caller's stack. Parsing and compiling are
recursive, with about ten frames for each level. Without `with_recursion_room`, a stage that was
accepted on a shallow stack could not be opened on a deep one.

An order is parsed as well: `"x desc, y nulls last"`, as after ORDER BY in Spark SQL.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial, wraps
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple, ParamSpec, TypeVar

from sqlglot import TokenType, exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, TokenError
from sqlglot.parsers.spark import SparkParser

from nosync_nb.errors import ExpressionError
from nosync_nb.rows.ddl import quoted

_P = ParamSpec("_P")
_T = TypeVar("_T")


def with_recursion_room(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Returns a function of a text that runs on a separate stack if the caller's is too short.

    Raises:
        ExpressionError: if the text is nested too deeply even for the separate stack.
    """

    @wraps(function)
    def called(*given: _P.args, **named: _P.kwargs) -> _T:
        def too_deep() -> ExpressionError:
            return ExpressionError(
                f"[FAILED_TO_PARSE_TOO_COMPLEX] expression {given[0]!r:.60} is nested too deeply",
                hint="compute a part of it first: with_columns(part='...')",
            )

        return run_with_recursion_room(partial(function, *given, **named), too_deep)

    return called


def run_with_recursion_room(call: Callable[[], _T], too_deep: Callable[[], ExpressionError]) -> _T:
    """Returns the result of a call, on a separate stack if the caller's is too short.

    Args:
        too_deep: returns the error of a call that is too deep even for the separate stack.
    """
    try:
        return call()
    except (RecursionError, SyntaxError):
        pass
    with ThreadPoolExecutor(1) as own:
        try:
            return own.submit(call).result()
        except (RecursionError, SyntaxError):
            pass
    raise too_deep()


_MARK = "\ue000{}\ue001"
_MARKED = re.compile("\ue000([0-9]+)\ue001")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([01][0-7][0-7])|(.))", re.DOTALL)
_LETTERS = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a"}
_LETTERS |= {"%": "\\%", "_": "\\_"}


def _unescaped(match: re.Match[str]) -> str:
    code = match[1] or match[2]
    if code:
        return chr(int(code, 16))
    if match[3]:
        return chr(int(match[3], 8))
    return _LETTERS.get(match[4], match[4])


def value_of(source: str) -> str:
    """Returns the value of a quoted string, which may have the prefix `r`.

    Raises:
        ValueError: if an escape does not name a character.
    """
    raw = source[0] in "rR"
    quote = source[1] if raw else source[0]
    body = source[2:-1] if raw else source[1:-1]
    if raw:
        return body
    parts = re.split(f"(\\\\.)|({quote}{quote})", body, flags=re.DOTALL)
    joined = "".join(quote if part == quote * 2 else part for part in parts if part)
    return _ESCAPE.sub(_unescaped, joined)


def is_special(source: str) -> bool:
    """Returns True if the value of a quoted string differs from the text between the quotes.

    Bytes, as in `X'1F'`, are not strings.
    """
    if source[0] in "xX":
        return False
    return source[0] in "rR" or "\\" in source or source[1:-1].count(source[-1]) > 0


def marked(sql: str, strings: Sequence[tuple[int, int]]) -> tuple[str, list[str]]:
    """Replaces each special string by a marker; returns the text, and the values of the strings.

    Args:
        strings: the start and end of each string in the text.
    """
    pieces: list[str] = []
    values: list[str] = []
    at = 0
    for start, stop in _join_adjacent(sql, strings):
        source = sql[start:stop]
        if not is_special(source):
            continue
        pieces += [sql[at:start], "'", _MARK.format(len(values)), "'"]
        values.append(value_of(source))
        at = stop
    return "".join([*pieces, sql[at:]]), values


def _join_adjacent(sql: str, strings: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Joins adjacent strings with the same quote, because they are one string with that quote."""
    joined: list[tuple[int, int]] = []
    for start, stop in strings:
        touches = joined and joined[-1][1] == start and sql[start] == sql[start - 1]
        if touches and sql[start] in "'\"":
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return joined


def restore(tree: exp.Select, values: Sequence[str]) -> None:
    """Replaces the markers in a tree by the values of their strings."""
    for node in tree.find_all(exp.Literal):
        match = _MARKED.fullmatch(node.this) if node.is_string else None
        if match is not None and int(match[1]) < len(values):
            node.set("this", values[int(match[1])])


_PREFIX = "SELECT "
_SYNTAX = ("CAST", "TRY_CAST", "EXTRACT")
_KEYWORDS = {
    "OVERLAY": ("PLACING", "FROM", "FOR"),
    "POSITION": ("IN",),
    "SUBSTR": ("FROM", "FOR"),
    "SUBSTRING": ("FROM", "FOR"),
}
"""Functions whose arguments may be separated by these keywords instead of commas."""
_SIDES = {"BOTH": "trim", "LEADING": "ltrim", "TRAILING": "rtrim"}
_STRINGS = (TokenType.STRING, TokenType.RAW_STRING)
_PLAIN_NAME = re.compile(r"[^\W\d]\w*\Z")


class SparkExpressionParser(SparkParser):
    """Spark's grammar without functions, except those with a special syntax."""

    FUNCTIONS: ClassVar[dict[str, Any]] = {}
    FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
        **{name: SparkParser.FUNCTION_PARSERS[name] for name in _SYNTAX},
        **{name: partial(lambda name, parser: parser.separated(name), name) for name in _KEYWORDS},
        "TRIM": lambda parser: parser.trimmed(),
    }

    ARRAY_CONSTRUCTORS: ClassVar[dict[str, Any]] = {}
    """Empty, because sqlglot would lose the index of `array(a, b)[0]`, an element of a call."""

    # sqlglot's parsers of these functions are not used, because they drop arguments and accept
    # forms that Spark refuses.

    def separated(self, name: str) -> exp.Expression:
        """Parses the arguments of a function with keywords as separators (`_KEYWORDS`)."""
        arguments = [self._parse_bitwise()]
        mixed = name.startswith("SUBSTR")  # because Spark accepts substring(text from 1, 2)
        for keyword in _KEYWORDS[name]:
            if not (self._match_text_seq(keyword) or (mixed and self._match(TokenType.COMMA))):
                break
            arguments.append(self._parse_bitwise())
        if (mixed or len(arguments) == 1) and self._match(TokenType.COMMA):
            arguments += self._parse_csv(self._parse_bitwise)
        return self._called(name.lower(), arguments)

    def trimmed(self) -> exp.Expression:
        """Parses the arguments of `trim`; their order becomes that of `trim(characters, text)`."""
        side = self._match_texts(_SIDES) and self._prev.text.upper()
        arguments = [] if side and self._match(TokenType.FROM) else [self._parse_bitwise()]
        if not arguments or self._match(TokenType.FROM):
            arguments.append(self._parse_bitwise())
        elif side:
            self.raise_error(f"Expected FROM after {side}")
        elif self._match(TokenType.COMMA):
            arguments += self._parse_csv(self._parse_bitwise)
        return self._called(_SIDES[side or "BOTH"], arguments)

    def _parse_extract(self) -> exp.Extract:
        literal = self._match(TokenType.STRING, advance=False)
        part = self._parse_var(any_token=True)
        if literal or not self._match(TokenType.FROM):
            self.raise_error("Expected FROM after the part to extract")
        return self.expression(exp.Extract(this=part, expression=self._parse_bitwise()))

    def _parse_type(self, parse_interval: bool = True, fallback_to_identifier: bool = False) -> Any:
        """Parses `date '2024-01-31'::string` as the cast of a date, not of the text."""
        typed = (
            self._curr is not None
            and self._curr.token_type in self.TYPE_TOKENS
            and self._next is not None
            and self._next.token_type in _STRINGS
        )
        tree = super()._parse_type(parse_interval, fallback_to_identifier)
        if not typed or not isinstance(tree, exp.Cast) or not isinstance(tree.this, exp.Cast):
            return tree
        inner = tree.this
        while isinstance(inner.this, exp.Cast):
            inner = inner.this
        outer = tree.this
        tree.set("this", inner.this)
        inner.set("this", tree)
        return outer

    def _called(self, name: str, arguments: list[Any]) -> exp.Expression:
        given = [each for each in arguments if each is not None]  # None for an empty list
        return self.expression(exp.Anonymous(this=name, expressions=given))

    def _parse_term(self, parse_mod: bool = True) -> Any:
        """Parses `a >>> b` too, whose tokens are `>>` and an adjacent third `>`."""
        sign, before = self._curr, self._prev
        touches = sign and before and sign.start == before.end + 1
        if touches and sign.token_type == before.token_type == TokenType.GT:
            self._advance()
            return Unsigned(this=super()._parse_term(parse_mod))
        return super()._parse_term(parse_mod)


def listed_patterns(tree: exp.Any | exp.All) -> list[Any]:
    """Returns the patterns of `like any (...)` or `like all (...)`; empty for a subquery."""
    listed = tree.this
    if isinstance(listed, exp.Tuple):
        return list(listed.expressions)
    return [listed.this] if isinstance(listed, exp.Paren) else []


class Unsigned(exp.Unary):
    """The right operand of `>>>`, which is parsed as `>>` with this operand."""


class SparkExpressions(Spark):
    """The tokens of Spark with the grammar of `SparkExpressionParser`."""

    Parser = SparkExpressionParser


class Word(NamedTuple):
    """A token of the text.

    Attributes:
        text: the token; a name in backticks without them.
        start, end: its position in the text.
        kind: "string", "name" (in backticks), "word", "number" or "sign".
    """

    text: str
    start: int
    end: int
    kind: str


class Parsed(NamedTuple):
    """One parsed expression.

    Attributes:
        sql: the text without the alias.
        name: the alias; None without one.
        tree: the syntax tree.
        words: the tokens.
    """

    sql: str
    name: str | None
    tree: exp.Expression
    words: tuple[Word, ...]


@with_recursion_room
@lru_cache(maxsize=1024)
def parse(sql: str) -> Parsed:
    """Parses one expression.

    Raises:
        ExpressionError: if the text is not one expression; the message has the position.
    """
    words = tokens(sql)
    text, values = _touching(sql, words), list[str]()
    if any(word.kind == "string" and is_special(word.text) for word in words) or _has_quotes(words):
        try:
            text, values = marked(text, [(w.start, w.end) for w in words if w.kind == "string"])
        except (ValueError, OverflowError):
            raise _failure(
                sql, "an escape does not name a character", "write the character itself"
            ) from None
    try:
        statements = SparkExpressions().parse(_PREFIX + text)
    except ParseError as error:
        raise _unreadable(sql, error) from None
    except ArithmeticError:
        hint = "write numbers as in 12, 1.5, 1e3, 1.5BD"
        raise _failure(sql, "a literal that begins like a number is not a number", hint) from None
    select = statements[0] if len(statements) == 1 else None
    if values and isinstance(select, exp.Select):
        restore(select, values)
    if not isinstance(select, exp.Select) or _has_clauses(select):
        raise _failure(sql, "it is more than one expression", "give one expression, no clauses")
    if len(select.expressions) != 1:
        number = len(select.expressions)
        what = f"it is {number} expressions" if number else "it is empty"
        raise _failure(sql, what, "give each expression as a string of its own")
    tree = select.expressions[0]
    if not isinstance(tree, exp.Alias):
        return Parsed(sql.strip(), None, tree, words)
    kept = words[:-1]
    if kept and kept[-1].kind == "word" and kept[-1].text.lower() == "as":
        kept = kept[:-1]
    return Parsed(sql[: kept[-1].end].strip(), tree.alias, tree.this, kept)


def tokens(sql: str) -> tuple[Word, ...]:
    """Splits a text into tokens.

    Raises:
        ExpressionError: if a string or a comment is not closed.
    """
    try:
        parts = SparkExpressions().tokenize(sql)
    except TokenError:
        quote = next((q for q in "'\"`" if sql.count(q) % 2), None)
        at = f" at position {sql.rindex(quote) + 1}" if quote else ""
        raise _failure(sql, f"a string is not closed{at}", "close the quotes") from None
    words: list[Word] = []
    for token in parts:
        source = sql[token.start : token.end + 1]
        if words and words[-1].start == token.start:
            continue  # sqlglot splits a number with a suffix into three tokens
        if source[0] == "`":
            kind, text = "name", token.text
        elif source[-1] in "'\"":
            kind, text = "string", source
        elif source[0].isdigit() or (source[0] == "." and len(source) > 1):
            kind, text = "number", source
        else:
            kind, text = ("word" if _PLAIN_NAME.match(source) else "sign"), source
        words.append(Word(text, token.start, token.end + 1, kind))
    return tuple(words)


def _touching(sql: str, words: tuple[Word, ...]) -> str:
    """Joins the X of `X '1010'` to its string; all other tokens keep their position."""
    for mark, string in pairwise(words):
        gap = sql[mark.end : string.start]
        if mark.text in ("x", "X") and string.kind == "string" and gap.isspace():
            sql = f"{sql[: mark.start]}{gap}{mark.text}{sql[string.start :]}"
    return sql


def _has_quotes(words: tuple[Word, ...]) -> bool:
    """Returns True if two strings are adjacent, which means a quote inside one string."""
    return any(a.end == b.start and a.kind == b.kind == "string" for a, b in pairwise(words))


def _has_clauses(select: exp.Select) -> bool:
    return any(value for name, value in select.args.items() if name != "expressions")


def _failure(sql: str, what: str, hint: str) -> ExpressionError:
    return ExpressionError(f"cannot read the expression {sql!r}: {what}", hint=hint)


def _unreadable(sql: str, error: ParseError) -> ExpressionError:
    """Returns the error with the position in the user's text at which sqlglot stopped."""
    first = error.errors[0] if error.errors else {}
    seen, line = str(first.get("highlight") or ""), int(first.get("line") or 1)
    end = int(first.get("col") or 0) - (len(_PREFIX) if line == 1 else 0)
    where = f"at position {max(1, end - len(seen) + 1)}"
    if "\n" in sql:
        where += f" of line {line}"
    description = str(first.get("description") or "it is not an expression")
    if "missing" in description:
        what = f"something is missing after {seen!r} {where}"
    elif description.startswith("Expecting"):
        what = f"expected {description[10:].rstrip('.')!r} near {seen!r} {where}"
    else:
        what = f"did not expect {seen!r} {where}"
    return _failure(sql, what, "write one Spark SQL expression, such as 'dep_delay > 60'")


_SPELLINGS = {"==": "=", "!=": "<>", "!": "not"}


def canonical(words: tuple[Word, ...], names: dict[str, str]) -> str:
    """Returns a text that is equal for expressions that differ only in space, comments and case.

    Args:
        words: the tokens of the expression.
        names: the names of columns in the schema, by their spelling in lower case.
    """
    texts = []
    for i, word in enumerate(words):
        called = i + 1 < len(words) and words[i + 1].text == "("
        if word.kind == "string":
            texts.append(word.text)
        elif word.kind == "name" or (word.kind == "word" and not called):
            own = names.get(word.text.lower())
            texts.append(quoted(own) if own is not None else word.text.lower())
        else:
            texts.append(_SPELLINGS.get(word.text, word.text.lower()))
    return " ".join(texts)


_LEVELS: dict[type[exp.Expression], int] = {
    exp.Or: 1,
    exp.And: 2,
    exp.Not: 3,
    exp.Is: 4,
    exp.In: 4,
    exp.Between: 4,
    exp.Like: 4,
    exp.ILike: 4,
    exp.RegexpLike: 4,
    exp.EQ: 5,
    exp.NEQ: 5,
    exp.NullSafeEQ: 5,
    exp.NullSafeNEQ: 5,
    exp.LT: 5,
    exp.LTE: 5,
    exp.GT: 5,
    exp.GTE: 5,
    exp.BitwiseLeftShift: 9,
    exp.BitwiseRightShift: 9,
    exp.BitwiseAnd: 8,
    exp.BitwiseXor: 7,
    exp.BitwiseOr: 6,
    exp.Add: 10,
    exp.Sub: 10,
    exp.DPipe: 10,
    exp.Mul: 11,
    exp.Div: 11,
    exp.Mod: 11,
    exp.IntDiv: 11,
    exp.Neg: 12,
    exp.BitwiseNot: 12,
}
"""The precedence of operators in Spark's grammar.

`like`, `in`, `between` and `is` bind less tightly than `=`.
"""


def agrees_with_spark(tree: exp.Expression) -> bool:
    """Returns True if Spark's grammar groups the text as this tree does."""
    return all(_grouped(node) for node in tree.walk())


def _grouped(node: Any) -> bool:
    level = _LEVELS.get(type(node))
    if level is None:
        return True
    if isinstance(node, exp.Not):
        return _negated(node)
    least = 5 if level == 4 else level
    for name, child in _operands(node):
        own = _LEVELS.get(type(child), 13)
        if name == "this":
            if own < least:
                return False
        elif own <= (4 if level == 4 else level):
            return False
    return True


def _negated(node: exp.Not) -> bool:
    """Returns True if the operand of a `not` binds tightly enough.

    `x not in (..)` and `x is not null` are parsed as Not(In) and Not(Is).
    """
    return _LEVELS.get(type(node.this), 13) >= 3


def _operands(node: exp.Expression) -> Iterator[tuple[str, exp.Expression]]:
    for name in ("this", "expression", "low", "high"):
        child = node.args.get(name)
        if isinstance(child, exp.Expression):
            yield name, child


class OrderTerm(NamedTuple):
    """One expression of an order.

    By default nulls are first, or last in descending order, as in Spark.

    Attributes:
        sql: the expression.
        descending: True for `desc`.
        nulls_first: True if nulls are first.
    """

    sql: str
    descending: bool
    nulls_first: bool


def parse_order(text: str) -> list[OrderTerm]:
    """Splits an order at its commas, and parses the words after each expression.

    Raises:
        ExpressionError: if a term is empty or not an expression, or if a string is not closed.
    """
    if not isinstance(text, str):
        raise ExpressionError(f"by={text!r} is not a string", hint="write by='delay desc, name'")
    return [_term(text, words) for words in _terms(text)]


def parse_list(text: str) -> list[str]:
    """Splits a list of expressions at its commas: `"a, cast(b as int) AS c"`.

    Raises:
        ExpressionError: if a string is not closed.
    """
    return [text[words[0].start : words[-1].end] if words else "" for words in _terms(text)]


def _terms(text: str) -> list[list[Word]]:
    """Returns the tokens between the commas that are outside of parentheses."""
    terms: list[list[Word]] = [[]]
    depth = 0
    for word in tokens(text):
        depth += (word.text in "([") - (word.text in ")]") if word.kind == "sign" else 0
        if word.kind == "sign" and word.text == "," and not depth:
            terms.append([])
        else:
            terms[-1].append(word)
    return terms


def _term(text: str, words: list[Word]) -> OrderTerm:
    """Parses `expression [asc | desc] [nulls first | nulls last]`."""
    keywords = [word.text.lower() if word.kind == "word" else "" for word in words]
    nulls_first = None
    if keywords[-2:] in (["nulls", "first"], ["nulls", "last"]):
        nulls_first = keywords[-1] == "first"
        words, keywords = words[:-2], keywords[:-2]
    descending = False
    if keywords and keywords[-1] in ("asc", "desc"):
        descending = keywords[-1] == "desc"
        words = words[:-1]
    sql = text[words[0].start : words[-1].end] if words else ""
    if not words or parse(sql).name is not None:
        what = f"{sql!r} is not a column" if words else "there is no column to order by"
        raise ExpressionError(f"by={text!r}: {what}", hint="write by='delay desc, name'")
    return OrderTerm(sql, descending, not descending if nulls_first is None else nulls_first)
