"""Cases of dates and times: patterns, months, weeks, Unix seconds, intervals, units by name.

`x_date` and `x_timestamp` have the day before 1582 and days after 9999, leap days and both ends of
a month.
"""

from __future__ import annotations

from collections.abc import Iterator

from sql_cases.function_cases import Case

TIMES = ("date", "timestamp", "timestamp_ntz")


_WRITTEN = (
    "yyyy-MM-dd HH:mm:ss.SSSSSS",
    "yy y yyyyy M MMM MMMM d EEE EEEE a h hh H m s D DDD",
    "dd/MM/yyyy k K kk KK LLL LLLL q QQQ QQQQ Q",
    "yyyyMMdd'T'HHmm",
    "h:mm a, S SSS SSSSSSSSS",
    "'on' d 'of' MMMM (yyyy) ; _ | 1 é",
)
_READ = (
    "yyyy-MM-dd", "yyyy-M-d", "dd/MM/yyyy", "yyyyMMdd", "d MMM yyyy", "dd-MMMM-yyyy",
    "yyyy-MM-dd HH:mm:ss", "yyyy-MM-dd HH:mm:ss.SSSSSS", "yyyy-MM-dd'T'H:m:s.SSS", "yyyyMMddHHmmss",
    "MM/dd/yyyy hh:mm a", "dd.MM.yy", "yyyy", "MM-dd", "yyyy-MM",
)  # fmt: skip


def text_cases() -> Iterator[Case]:
    for pattern in _WRITTEN:
        for type_ in TIMES:
            yield Case(f'date_format(x_{type_}, "{pattern}")')
    yield Case("to_char(x_timestamp, 'yyyy-MM-dd')")
    yield Case("to_varchar(x_date, 'dd')")
    for zone in ("America/New_York", "Europe/Paris", "+05:30"):
        for name in ("from_utc_timestamp", "to_utc_timestamp"):
            yield Case(f"{name}(x_timestamp, '{zone}')")
    yield Case("convert_timezone('Europe/Paris', 'Asia/Tokyo', x_timestamp_ntz)")
    yield Case("convert_timezone('America/New_York', x_timestamp_ntz)")
    yield Case("from_unixtime(x_int)")
    yield Case("from_unixtime(x_bigint, 'yyyy-MM-dd')")
    for pattern in _READ:
        for text in ("x_string", f'date_format(x_timestamp, "{pattern}")'):
            call = f'({text}, "{pattern}")'
            yield Case(f"to_timestamp{call}", f"try_to_timestamp{call}")
    for pattern in ("yyyy-MM-dd", "yyyy-M-d", "dd/MM/yyyy", "yyyyMMdd"):
        for text in (f"date_format(x_timestamp, '{pattern}')", "concat(x_string, '1')"):
            call = f"({text}, '{pattern}')"
            yield Case(f"to_date{call}", f"try_to_date{call}")
    for name in ("to_timestamp_ltz", "to_timestamp_ntz", "unix_timestamp", "to_unix_timestamp"):
        call = "(x_string, 'yyyy-M-d')"
        fits = f"nvl2(try_to_timestamp{call}, x_string, null)"
        yield Case(f"{name}{call}", f"{name}({fits}, 'yyyy-M-d')")
    for bad in ("2024-02-30", "12024-01-01", "+2024-01-01", "+12024-01-01", "-2024-01-01"):
        yield Case(f"to_date(if(x_boolean, '{bad}', null), 'yyyy-MM-dd')",
                    f"try_to_date(if(x_boolean, '{bad}', null), 'yyyy-MM-dd')")  # fmt: skip


def unix_cases() -> Iterator[Case]:
    for type_ in ("date", "timestamp"):
        yield Case(f"unix_timestamp(x_{type_})")
        yield Case(f"to_unix_timestamp(x_{type_})")
        yield Case(f"to_timestamp(x_{type_})")
    yield Case("to_timestamp_ntz(x_date)")
    yield Case("to_timestamp_ltz(x_date)")
    yield Case("unix_date(x_date)")
    yield Case("unix_seconds(x_timestamp)")
    yield Case("unix_millis(x_timestamp)")
    for type_ in ("tinyint", "smallint", "int"):
        yield Case(f"date_from_unix_date(x_{type_})")
    for type_ in ("tinyint", "int", "bigint"):
        far = f"abs(cast(x_{type_} as double)) <= 9223372036854D"
        for name in ("timestamp_millis", "timestamp_seconds"):
            wide = far + "/ 1000" if "milli" not in name else far + " * 1000"
            wide = wide.replace("9223372036854D/ 1000", "9223372036854D")
            wide = wide.replace("9223372036854D * 1000", "9223372036854775D")
            yield Case(f"{name}(x_{type_})", f"if({wide}, {name}(if({wide}, x_{type_}, 0)), null)")
    yield Case("timestamp_seconds(x_double)")
    yield Case("timestamp_seconds(x_float)")


def calendar_cases() -> Iterator[Case]:
    for type_ in TIMES:
        for name in ("weekofyear", "dayname", "monthname"):
            yield Case(f"{name}(x_{type_})")
        for months in ("1", "-12", "13", "0", "-1"):
            yield Case(f"add_months(x_{type_}, {months})")
        for unit in ("week", "dow", "doy", "yearofweek", "dayofweek_iso", "qtr", "mons", "hrs"):
            yield Case(f"extract({unit} from x_{type_})")
        for day in ("MON", "tu", "Wednesday", "TH", "fri", "SA", "sunday"):
            yield Case(f"next_day(x_{type_}, '{day}')")
        yield Case(f"date_part('year', x_{type_})")
        yield Case(f"datepart('MIN', x_{type_})")
        yield Case(f"trunc(x_{type_}, 'x')")
        yield Case(f"date_trunc('DD', x_{type_})")
        yield Case(f"date_trunc('microsecond', x_{type_})")
        yield Case(f"months_between(x_{type_}, y_date)")
        yield Case(f"months_between(x_{type_}, y_timestamp, false)")
    yield Case("months_between(x_timestamp, y_timestamp)")
    yield Case("months_between(last_day(x_date), last_day(y_date), true)")
    for type_ in ("tinyint", "smallint"):
        yield Case(f"add_months(x_date, y_{type_})")
    fits = "make_date(1970 + x_tinyint, pmod(y_int, 12) + 1, pmod(x_int, 28) + 1)"
    yield Case(fits)
    yield Case("make_date(2024 + x_tinyint, 2, y_tinyint)",
                "if(y_tinyint between 1 and 28 or (y_tinyint = 29 and day(last_day(make_date("
                "2024 + x_tinyint, 2, 1))) = 29), make_date(2024 + x_tinyint, 2, "
                "if(y_tinyint between 1 and 29, y_tinyint, 1)), null)")  # fmt: skip


_INTERVALS = (
    "interval 1 day", "interval '1' week", "interval 1 hour", "interval -90 minutes",
    "interval '1.5' second", "interval 1 month", "interval '1' year",
    "interval '1-2' year to month", "interval '-1 02:03:04.5' day to second",
    "interval '10:20' hour to minute",
)  # fmt: skip
_UNITS = ("year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond")


def interval_cases() -> Iterator[Case]:
    for type_ in TIMES:
        for interval in _INTERVALS:
            yield Case(f"x_{type_} + {interval}")
            yield Case(f"x_{type_} - {interval}")
        yield Case(f"interval 1 day + x_{type_}")
        for unit in (*_UNITS, "microsecond"):
            yield Case(f"timestampadd({unit}, 7, x_{type_})")
        for unit in ("month", "day", "hour"):
            yield Case(f"dateadd({unit}, y_tinyint, x_{type_})")
            yield Case(f"date_add({unit}, -1, x_{type_})")
    for a, b in (("x_date", "y_timestamp"), ("x_timestamp", "y_timestamp"), ("x_date", "y_date")):
        for unit in (*_UNITS, "microsecond"):
            yield Case(f"timestampdiff({unit}, {a}, {b})")
        yield Case(f"datediff(day, {a}, {b})")
        yield Case(f"date_diff(month, {a}, {b})")
    call = "timestampadd(microsecond, {}, if(y_boolean, null, timestamp '2000-01-01'))"
    yield Case(call.format("x_int * 3"), call.format("try_multiply(x_int, 3)"))
    yield Case("x_timestamp + interval 1 day > y_date and y_date > date '1800-01-01'")


def clock_cases() -> Iterator[Case]:
    """Clock functions, in expressions with a fixed value."""
    for clock in ("now()", "current_timestamp()", "current_timestamp", "localtimestamp()"):
        yield Case(f"year({clock}) >= 2024")
    for day in ("current_date()", "current_date", "curdate()"):
        yield Case(f"{day} > date '2024-01-01'")
    yield Case("rand() between 0 and 1")
    yield Case("random() between 0 and 1")
    yield Case("randn() is not null")
    yield Case("length(uuid())")


def every() -> list[Case]:
    return [*clock_cases(), *text_cases(), *unix_cases(), *calendar_cases(), *interval_cases()]
