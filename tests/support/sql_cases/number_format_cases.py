"""Cases of texts that are read by a format: numbers and bytes."""

from __future__ import annotations

from collections.abc import Iterator

from sql_cases.function_cases import Case

_TEXTS = (
    "x_string", "cast(x_int as string)", "cast(x_decimal_10_2 as string)",
    "format_number(x_decimal_10_2, 2)", "concat(' ', abs(cast(x_smallint as int)), '.', y_string)",
    "concat('$', format_number(y_int, 1))", "concat('<', abs(cast(y_smallint as int)), '>')",
    "concat(abs(cast(x_smallint as int)), '-')",
)  # fmt: skip
_NUMBERS = (
    "9", "S99999", "s9999999999", "MI999G999G999G999D99", "000.99", "9999999999.00",
    "$9,999,999,999.9", "99999PR", "99999D99MI", "99999S",
)  # fmt: skip


def every() -> Iterator[Case]:
    for text in _TEXTS:
        for form in _NUMBERS:
            tried = f"try_to_number({text}, '{form}')"
            yield Case(f"to_number({text}, '{form}')", tried)
            yield Case(tried)
    for text in ("x_string", "base64(x_binary)", "hex(x_int)", "concat(base64(y_binary), ' =')"):
        for form in (", 'base64'", ", 'HEX'", "", ", 'utf-8'"):
            tried = f"try_to_binary({text}{form})"
            yield Case(f"to_binary({text}{form})", tried)
            yield Case(tried)
