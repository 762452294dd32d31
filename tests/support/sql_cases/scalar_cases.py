"""Cases of decimals and casts, on the values of expression_cases.py."""

from __future__ import annotations

from collections.abc import Iterator

from sql_cases.function_cases import NEAR, PLAIN, TWINS

DECIMALS = ("decimal_10_2", "decimal_18_0", "decimal_26_6", "decimal_38_10")
_TWINS = {"+": "try_add", "-": "try_subtract", "*": "try_multiply", "/": "try_divide"}
_TWINS |= {"%": "try_mod"}
Made = tuple[str, str | None]


def decimal_cases() -> Iterator[Made]:
    """Arithmetic, rounding and branches of decimals."""
    for k, a in enumerate(DECIMALS):
        for m, b in enumerate((*DECIMALS, "int", "bigint", "tinyint")):
            few = a != b and (k + m) % 3
            for op in ("+", "*") if few else _TWINS:
                if op == "%" and a == "decimal_38_10":
                    continue
                yield f"x_{a} {op} y_{b}", f"{_TWINS[op]}(x_{a}, y_{b})"
        x = f"x_{a}"
        most = f"{'9' * 28}.{'9' * 10}"  # of 34 digits, which a negative has, it has one too many
        yield f"-{x}", f"nullif({x}, {most})" if a == "decimal_38_10" else None
        yield f"abs({x})", None
        yield f"positive({x})", None
        yield f"floor({x})", None
        yield f"ceil({x})", None
        yield f"sqrt({x})", None
        for places in (-2, 0, 1, 3):
            yield f"round({x}, {places})", None
            yield f"bround({x}, {places})", None
        for literal in ("2", "-7", "1.1", "0.005", "30000000000"):
            for op in "+*":
                yield f"{x} {op} {literal}", f"{_TWINS[op]}({x}, {literal})"
        yield f"{x} + y_double", None
        yield f"{x} < y_double", None
        yield f"case when x_boolean then {x} else 0 end", None
        yield f"coalesce({x}, y_decimal_10_2)", None
        yield f"greatest({x}, y_decimal_10_2)", None
        yield f"least(y_{a}, {x}, 7)", None
        yield f"nullif({x}, 1)", None
    for number in ("tinyint", "int", "bigint"):
        yield f"x_{number} / 2.0", f"try_divide(x_{number}, 2.0)"
        yield f"1.5 * x_{number}", None
        yield f"x_{number} % 0.7", None
    yield (
        "x_decimal_10_2 div y_decimal_10_2",
        ("case when y_decimal_10_2 <> 0 then x_decimal_10_2 div y_decimal_10_2 end"),
    )
    yield "x_decimal_10_2 div 1", None
    yield "x_decimal_10_2 * (1 - y_decimal_10_2) * (1 + y_decimal_10_2)", None
    yield "x_decimal_10_2 + cast(2 as bigint)", None
    yield "1.0 / 3", None
    yield "0.1 + 0.2", None
    yield "1.5", None


def decimal_cast_cases() -> Iterator[Made]:
    """Casts from and to decimals, and those that are tried."""
    wanted = ("decimal(10,2)", "decimal(5,0)", "decimal(38,10)", "decimal(38,37)", "decimal")
    plain = ("tinyint", "int", "bigint", "float", "double", "boolean", "string")
    for a in (*plain, *DECIMALS):
        for b in wanted:
            yield f"cast(x_{a} as {b})", f"try_cast(x_{a} as {b})"
    for a in DECIMALS:
        for b in (*plain, "smallint"):
            yield f"cast(x_{a} as {b})", f"try_cast(x_{a} as {b})"
    for a in ("bigint", "float", "double", "string", "boolean"):
        for b in ("tinyint", "smallint", "int", "bigint", "float", "double", "boolean"):
            if a != b:
                yield f"try_cast(x_{a} as {b})", None
    yield "try_cast(x_string as date)", None
    yield "try_cast(x_string as decimal(10,2))", None
    yield "try_cast(x_decimal_38_10 as decimal(10,2))", None


def scalar_cases() -> Iterator[Made]:
    yield from decimal_cases()
    yield from decimal_cast_cases()
    yield from ((sql, None) for sql in (*NEAR, *PLAIN))
    yield from TWINS.items()
