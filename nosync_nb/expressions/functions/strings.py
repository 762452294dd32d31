"""Functions of text and bytes, computed row by row or for each distinct value.

Positions count code points; bytes are those of UTF-8. `kernels/strings.py` converts the case of
letters. Text is parsed by a literal format: by digits and signs in `to_number`, by its encoding in
`to_binary`. Text that does not fit the format is an error with ANSI mode and without;
`try_to_number` and `try_to_binary` return null. A format that Spark refuses is left to Spark, whose
error names the reason.
"""

from __future__ import annotations

import base64
import re
import unicodedata
from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Any, NamedTuple

from nosync_nb.expressions.evaluation.nodes import (
    CaseNode,
    IsNullNode,
    LiteralNode,
    StrictNode,
    ValueNode,
)
from nosync_nb.expressions.functions import rules
from nosync_nb.expressions.functions.hashes import as_bytes, of_bytes, raw
from nosync_nb.expressions.functions.rules import OF_BYTES, OF_TEXT, Function, Rule, check_arity
from nosync_nb.expressions.implicit_casts import cast, implicit, literal_value
from nosync_nb.expressions.kernels import reasons, strings
from nosync_nb.expressions.kernels.kernel import (
    InvalidError,
    NotProvedError,
    TextKernel,
    null_on_error,
)
from nosync_nb.expressions.typing_rules import DIGITS_MAX, is_decimal
from nosync_nb.rows.types import FLOATS, INTEGERS, decimal_parts

_FORMAT = re.compile(
    r"(?P<first>MI|S)?(?P<dollar>\$)?(?P<whole>[09]+(?:[,G][09]+)*)"
    r"(?:[.D](?P<places>[09]*))?(?P<last>MI|S|PR)?"
)
_SIGNS = {"S": "+-", "MI": "-", "PR": "", None: ""}
_NO_BLANKS = "\u00a0\u2007\u202f"


def is_blank(character: str) -> bool:
    """Returns True if Java treats a character as white space."""
    if character in "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f":
        return True
    return unicodedata.category(character) in ("Zs", "Zl", "Zp") and character not in _NO_BLANKS


def _is_digit(character: str) -> bool:
    return character.isdecimal() and character < "\U00010000"


class _Reader:
    """A parser of numbers in a format.

    Attributes:
        digits: the number of digits of the result, before and after the point.
        places: the number of digits after the point.
    """

    def __init__(self, form: str) -> None:
        match = _FORMAT.fullmatch(form.upper())
        if match is None or (match["first"] and match["last"]):
            raise NotProvedError(f"the format {form!r}")
        self.form = form
        self.first, self.last = match["first"], match["last"]
        self.dollar = bool(match["dollar"])
        self.groups = re.split("[,G]", match["whole"])[::-1]
        self.places = len(match["places"] or "")
        self.point = match["places"] is not None
        self.digits = sum(map(len, self.groups)) + self.places
        if self.digits > DIGITS_MAX:
            raise NotProvedError(f"the format {form!r}")

    def number(self, text: str) -> int:
        """Parses a number, and returns it in units of its last place.

        Raises:
            InvalidError: if the text does not fit the format.
        """
        at, negative = self._sign(text, 0, self.first)
        for sign in ("<" if self.last == "PR" and text[:1] == "<" else "", "$" * self.dollar):
            if text[at : at + len(sign)] != sign:
                self._refuse(text)
            at += len(sign)
        at, whole = self._run(text, at, ",")
        sizes = [len(group) for group in whole.split(",")][::-1]
        if len(sizes) > len(self.groups) or not all(map(_fits, self.groups, _filled(sizes))):
            self._refuse(text)
        places = ""
        if self.point and text[at : at + 1] == ".":
            at, places = self._run(text, at + 1, "") if self.places else (at + 1, "")
        digits = whole.replace(",", "") + places
        if len(places) > self.places or not digits:
            self._refuse(text)
        if self.last == "PR":
            negative = text[:1] == "<"
            at += text[at : at + 1] == ">" if negative else 0
            if negative and text[at - 1] != ">":
                self._refuse(text)
        elif self.last:
            at, negative = self._sign(text, at, self.last)
        if at < len(text):
            self._refuse(text)
        value: int = int(digits) * 10 ** (self.places - len(places))
        return -value if negative else value

    def _sign(self, text: str, at: int, kind: str | None) -> tuple[int, bool]:
        """Returns the position after an optional sign, and True if the sign is a minus."""
        sign = text[at : at + 1]
        if not sign or sign not in _SIGNS[kind]:
            return at, False
        return at + 1, sign == "-"

    def _run(self, text: str, at: int, more: str) -> tuple[int, str]:
        """Reads digits, white space and the separator `more`.

        Returns the position after them, and the characters without white space.
        """
        start = at
        while at < len(text) and (
            _is_digit(text[at]) or is_blank(text[at]) or (more and text[at] == more)
        ):
            at += 1
        return at, "".join([c for c in text[start:at] if not is_blank(c)])

    def _refuse(self, text: str) -> None:
        raise InvalidError(
            reasons.Reason(
                "INVALID_FORMAT.MISMATCH_INPUT",
                f"{text!r} does not fit the format {self.form!r}",
                "return null instead with try_to_number, or clean the values first",
            )
        )


def _filled(sizes: list[int]) -> list[int]:
    return [*sizes, *[0] * DIGITS_MAX]


def _fits(group: str, size: int) -> bool:
    """Returns True if a group of the format accepts a number of digits.

    A group that begins with 0 needs all its digits; any other group accepts fewer.
    """
    return size == len(group) if group[0] == "0" else size <= len(group)


def _to_number(*, tries: bool) -> Rule:
    """Returns the rule of `to_number(text, '$9,999.99')`, or of `try_to_number` (`tries`)."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        check_arity(name, arguments, 2)
        text = implicit(arguments[0], "string", utc=utc)
        form = literal_value(arguments[1], "a format")
        if not isinstance(form, str):
            raise NotProvedError(f"{name} with a format that is not a string")
        reader = _Reader(form)
        kernel = TextKernel(reader.number, raises=True)
        type_ = f"decimal({reader.digits},{reader.places})"
        return StrictNode(name, type_, null_on_error(kernel) if tries else kernel, (text,))

    return rule


def unhexed(text: str) -> bytes | None:
    """Returns the bytes of hexadecimal digits; None if the text is invalid."""
    digits = text if len(text) % 2 == 0 else "0" + text
    if not re.fullmatch("[0-9a-fA-F]*", digits):
        return None
    return bytes.fromhex(digits)


def _not_encoded(text: str, what: str) -> reasons.Reason:
    remedy = "return null instead with try_to_binary, or clean the values first"
    return reasons.Reason("CONVERSION_INVALID_INPUT", f"{text!r} is not {what}", remedy)


def _hex(text: str) -> bytes:
    value = unhexed(text)
    if value is None:
        raise InvalidError(_not_encoded(text, "a hexadecimal number"))
    return value


def _base64(text: str) -> bytes:
    """Decodes base64; white space between letters and missing padding are accepted."""
    body = text.rstrip("=")
    letters = "".join([c for c in body if not is_blank(c)])
    padding = len(text) - len(body)
    wrong = len(letters) % 4 == 1 or (padding and (padding > 2 or (len(letters) + padding) % 4))
    if wrong or not re.fullmatch("[A-Za-z0-9+/]*", letters):
        raise InvalidError(_not_encoded(text, "valid base64"))
    return base64.b64decode(letters + "=" * (-len(letters) % 4))


_BYTES = {"hex": TextKernel(_hex, raises=True), "base64": TextKernel(_base64, raises=True)}


def _to_binary(*, tries: bool) -> Rule:
    """Returns the rule of `to_binary(text [, 'hex', 'base64' or 'utf-8'])` or `try_to_binary`."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        if not arguments:
            raise NotProvedError(f"{name} without arguments")
        text, *form = arguments
        kind: Any = str(literal_value(form[0], "a format")).lower() if form else "hex"
        if len(form) > 1 or kind not in (*_BYTES, "utf-8", "utf8"):
            raise NotProvedError(f"{name} by {kind!r}")
        text = implicit(text, "string", utc=utc)
        if kind not in _BYTES:
            return cast(text, "binary", utc=utc)
        kernel = _BYTES[kind]
        return StrictNode(name, "binary", null_on_error(kernel) if tries else kernel, (text,))

    return rule


FORMAT_FUNCTIONS: dict[str, Rule] = {
    "to_number": _to_number(tries=False),
    "try_to_number": _to_number(tries=True),
    "to_binary": _to_binary(tries=False),
    "try_to_binary": _to_binary(tries=True),
}
EITHER = frozenset(("to_number", "to_binary"))
"""Functions that raise for a text that does not fit, even without ANSI mode."""


Text = TextKernel


def concat_ws(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `concat_ws(separator, ...)` of texts."""
    if not arguments:
        raise NotProvedError("concat_ws without arguments")
    operands = [implicit(argument, "string", utc=utc) for argument in arguments]
    large = rules.all_joined if len(operands) > 1 else None
    return rules.NullTolerantNode("string", rules.joined, operands, large=large)


def length(per_byte: int | None) -> Rule:
    """Returns the rule of a function that measures text or bytes.

    Args:
        per_byte: the units for each byte; `None` counts code points of text, and bytes of binary.
    """

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        check_arity(name, arguments, 1)
        node = as_bytes(arguments[0], utc)
        if per_byte is None and node.type == "string":
            return StrictNode(name, "int", strings.length, (node,))
        kernel = Text(lambda value: len(raw(value)) * (per_byte or 1))
        return StrictNode(name, "int", kernel, (node,))

    return rule


def stripped(way: Callable[[str, str], str], plain: TextKernel, *, first: bool) -> Rule:
    """Returns the rule of `trim` or a similar call.

    Args:
        way: removes the given characters from a text.
        plain: the kernel that removes blanks, for calls without characters.
        first: True if the characters are the first of two arguments.
    """

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        given = [implicit(argument, "string", utc=utc) for argument in arguments]
        if len(given) == 1:
            return StrictNode(name, "string", plain, given)
        check_arity(name, given, 2)
        kernel = Text((lambda cut, s: way(s, cut)) if first else way)
        return StrictNode(name, "string", kernel, given)

    return rule


def _strip(text: str, cut: str) -> str:
    return text.strip(cut) if cut else text


def _lstrip(text: str, cut: str) -> str:
    return text.lstrip(cut) if cut else text


def _rstrip(text: str, cut: str) -> str:
    return text.rstrip(cut) if cut else text


TRIMMED = {
    "both": stripped(_strip, strings.trim, first=True),
    "leading": stripped(_lstrip, strings.ltrim, first=True),
    "trailing": stripped(_rstrip, strings.rtrim, first=True),
}


def _locate(part: str, text: str, start: int) -> int:
    if start < 1:
        return 0
    return 1 if not part else text.find(part, start - 1) + 1


def locate(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `locate(part, text, start)` and `position`."""
    given = [implicit(argument, "string", utc=utc) for argument in arguments[:2]]
    if len(arguments) == 2:
        return StrictNode(name, "int", strings.locate, given)
    check_arity(name, arguments, 3)
    start = implicit(arguments[2], "int", utc=utc)
    place = StrictNode(name, "int", Text(_locate), (*given, start))
    return CaseNode([(IsNullNode(start), LiteralNode(0, "int"))], place)


def _substring_index(text: str, mark: str, number: int) -> str:
    if not mark or number == 0:
        return ""
    at = -1 if number > 0 else len(text)
    for _ in range(abs(number)):
        at = text.find(mark, at + 1) if number > 0 else text.rfind(mark, 0, at + len(mark) - 1)
        if at < 0:
            return text
    return text[:at] if number > 0 else text[at + len(mark) :]


_PART_ZERO = reasons.INDEX_ZERO._replace(fault="parts are numbered from 1, or from -1 from the end")


def _split_part(text: str, mark: str, number: int) -> str:
    if number == 0:
        raise InvalidError(_PART_ZERO)
    parts = text.split(mark) if mark else [text]
    place = number - 1 if number > 0 else len(parts) + number
    return parts[place] if 0 <= place < len(parts) else ""


def _translate(text: str, old: str, new: str) -> str:
    table: dict[int, str | None] = {}
    for i, character in enumerate(old):
        table.setdefault(ord(character), new[i] if i < len(new) else None)
    return text.translate(table)


def _initcap(text: str) -> str:
    lowered = strings.lower.row(text).split(" ")
    words = zip(text.split(" "), lowered, strict=True)
    return " ".join(_capital(word, small) if word else "" for word, small in words)


def _capital(word: str, lowered: str) -> str:
    first: str = strings.lower.row(word[0])
    return strings.title(word[0]) + lowered[len(first) :]


def _ascii(text: str) -> int:
    return ord(text[0]) if text else 0


def _chr(number: int) -> str:
    return "" if number < 0 else chr(number & 0xFF)


def hexadecimal(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `hex` of a number, which is cast to bigint, or of text or bytes."""
    check_arity(name, arguments, 1)
    given = arguments[0]
    if given.type in (*INTEGERS, *FLOATS) or is_decimal(given.type):
        number = given if given.type in INTEGERS else implicit(given, "bigint", utc=utc)
        kernel = Text(lambda number: f"{number & 0xFFFFFFFFFFFFFFFF:X}")
        return StrictNode(name, "string", kernel, (number,))
    kernel = Text(lambda value: raw(value).hex().upper())
    return StrictNode(name, "string", kernel, (as_bytes(given, utc),))


_CODES = dict(zip("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "01230127022455012623017202", strict=True))


def _soundex(text: str) -> str:
    """Returns the first letter, followed by three codes.

    Letters without a code end a run of equal codes, except H and W.
    """
    first = text[:1].upper()
    if not ("A" <= first <= "Z" and len(first) == 1):
        return text
    code, last = first, _CODES[first]
    for character in text[1:]:
        letter = character.upper()
        if not ("A" <= letter <= "Z" and len(letter) == 1):
            last = "0"
            continue
        digit = _CODES[letter]
        if digit == "7":
            continue
        if digit not in ("0", last):
            code += digit
            if len(code) == 4:
                break
        last = digit
    return code.ljust(4, "0")


def _distance(a: str, b: str) -> int:
    before = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        row = [i]
        for j, y in enumerate(b, 1):
            row.append(min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (x != y)))
        before = row
    return before[-1]


def _distance_within(a: str, b: str, most: int) -> int:
    if most < 0:
        return -1
    distance = _distance(a, b)
    return distance if distance <= most else -1


def levenshtein(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `levenshtein(a, b [, maximum])`."""
    given = [implicit(argument, "string", utc=utc) for argument in arguments[:2]]
    if len(arguments) == 2:
        return StrictNode(name, "int", Text(_distance), given)
    check_arity(name, arguments, 3)
    most = implicit(arguments[2], "int", utc=utc)
    literal_value(most, "the limit of levenshtein")  # not null, because Spark's results vary then
    return StrictNode(name, "int", Text(_distance_within), (*given, most))


def _overlay(text: str, new: str, start: int, size: int = -1) -> str:
    gone = len(new) if size < 0 else size
    before: str = strings.substring.row(text, 1, start - 1)
    first = start + gone
    rest = text[first - 1 :] if first > 0 else text[max(len(text) + first, 0) :] if first else text
    return before + new + rest


_WIDE = Context(prec=800)


def format_number(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `format_number(x, places)`: digits in groups of three, rounded with ties to even."""
    check_arity(name, arguments, 2)
    places = literal_value(arguments[1], "places")
    type_ = arguments[0].type
    number = type_ in INTEGERS or type_ in FLOATS or is_decimal(type_)
    if not isinstance(places, int) or not 0 <= places <= 60 or not number:
        raise NotProvedError(f"format_number of a {type_}")
    scale = decimal_parts(type_)[1] if is_decimal(type_) else 0
    unit = Decimal((0, (1,), -places))

    def row(value: Any) -> str:
        if isinstance(value, float) and value - value != 0:
            return "NaN" if value != value else "∞" if value > 0 else "-∞"
        exact = Decimal(value) if not scale else Decimal(value).scaleb(-scale, _WIDE)
        if isinstance(value, float):
            printed = Decimal(repr(value))
            exponent = printed.as_tuple().exponent
            exact = printed if isinstance(exponent, int) and -exponent <= places else exact
        return f"{exact.quantize(unit, ROUND_HALF_EVEN, _WIDE):,f}"

    return StrictNode(name, "string", Text(row), arguments[:1])


_PLAIN = re.compile(r"%(-?)([1-9][0-9]*)?([dsxX%])")
_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}


def format_string(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `format_string` of integers and texts, by a literal of `%d`, `%s`, `%x` and widths."""
    pattern = literal_value(arguments[0], "a format") if arguments else None
    if not isinstance(pattern, str):
        raise NotProvedError("a format that is not a string")
    pieces = _format_pieces(pattern)
    kinds = [piece.kind for piece in pieces if piece.kind]
    if len(kinds) != len(arguments) - 1:
        raise NotProvedError("a format of other arguments")
    for kind, argument in zip(kinds, arguments[1:], strict=True):
        if argument.type not in ((*INTEGERS, "string") if kind == "s" else INTEGERS):
            raise NotProvedError(f"%{kind} of a {argument.type}")
    masks = [(1 << _BITS.get(argument.type, 64)) - 1 for argument in arguments[1:]]

    def row(*values: Any) -> str:
        rest = iter(zip(values, masks, strict=True))
        texts = []
        for text, kind, left, width in pieces:
            if not kind:
                texts.append(text)
                continue
            shown = _formatted(kind, *next(rest))
            blanks = " " * (width - len(shown.encode("utf-16-le")) // 2)
            texts.append(shown + blanks if left else blanks + shown)
        return "".join(texts)

    if len(arguments) == 1:
        return LiteralNode(row(), "string")
    return rules.NullTolerantNode("string", row, arguments[1:])


def _formatted(kind: str, value: Any, mask: int) -> str:
    if value is None:
        return "NULL" if kind == "X" else "null"
    if kind in "xX":
        return f"{value & mask:{kind}}"
    return str(value)


class _FormatPiece(NamedTuple):
    """A part of a format: literal text, or a value.

    Attributes:
        kind: the conversion of the value, such as `d`; empty for literal text.
        left: True if the value is aligned to the left.
        width: the minimum width of the value.
    """

    text: str
    kind: str = ""
    left: bool = False
    width: int = 0


def _format_pieces(pattern: str) -> list[_FormatPiece]:
    pieces: list[_FormatPiece] = []
    at = 0
    while at < len(pattern):
        if pattern[at] != "%":
            stop = pattern.find("%", at)
            text = pattern[at : stop if stop >= 0 else len(pattern)]
            pieces.append(_FormatPiece(text))
            at += len(text)
            continue
        match = _PLAIN.match(pattern, at)
        if match is None or (match[1] and not match[2]):
            raise NotProvedError("this format")
        if match[3] == "%":
            if match[1] or match[2]:
                raise NotProvedError("this format")
            pieces.append(_FormatPiece("%"))
        else:
            pieces.append(_FormatPiece("", match[3], bool(match[1]), int(match[2] or 0)))
        at = match.end()
    return pieces


def _of_text(row: Callable[..., Any], *more: str, result: str = "string", **how: Any) -> Function:
    own = {key: how.pop(key) for key in ("optional", "refused") if key in how}
    return Function(("string", *more), result, Text(row, **how), **own)


def _base64_lines(value: bytes) -> str:
    """Encodes bytes as lines of MIME, Spark's default."""
    return "\r\n".join(re.findall(".{1,76}", base64.b64encode(value).decode()))


def _unbase64(text: str) -> bytes:
    """Decodes base64 like Java's MIME decoder, which skips characters outside of the alphabet."""
    letters = re.sub(r"[^A-Za-z0-9+/=]", "", text)
    body = letters.rstrip("=")
    padding = len(letters) - len(body)
    if "=" in body or len(body) % 4 == 1 or (padding and (len(body) + padding) % 4):
        raise InvalidError(_not_encoded(text, "valid base64"))
    return base64.b64decode(body + "=" * (-len(body) % 4))


_CHR = Function(("bigint",), "string", Text(_chr))
_SPACE = Function(("int",), "string", Text(lambda n: " " * n))

FUNCTIONS: dict[str, Function | Rule] = {
    "concat_ws": concat_ws,
    "octet_length": length(1),
    "bit_length": length(8),
    "btrim": stripped(_strip, strings.trim, first=False),
    "position": locate,
    "locate": locate,
    "substring_index": _of_text(_substring_index, "string", "int"),
    "split_part": _of_text(_split_part, "string", "int", raises=True),
    "translate": _of_text(_translate, "string", "string"),
    "initcap": _of_text(_initcap),
    "ascii": _of_text(_ascii, result="int"),
    "chr": _CHR,
    "char": _CHR,
    "space": _SPACE,
    "hex": hexadecimal,
    "unhex": _of_text(unhexed, result="binary", nullable=True),
    "bin": Function(("bigint",), "string", Text(lambda n: f"{n & 0xFFFFFFFFFFFFFFFF:b}")),
    "base64": of_bytes(_base64_lines),
    "unbase64": _of_text(_unbase64, result="binary", raises=True),
    "soundex": _of_text(_soundex, refused=OF_TEXT),
    "levenshtein": levenshtein,
    "overlay": _of_text(
        _overlay, "string", "int", "int", optional=1, refused=(*OF_BYTES, *OF_BYTES)
    ),
    "format_number": format_number,
    "format_string": format_string,
    "printf": format_string,
    "length": length(None),
    "len": length(None),
    "char_length": length(None),
    "character_length": length(None),
}
