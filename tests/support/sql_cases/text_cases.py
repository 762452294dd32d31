"""Texts that are read as times, numbers or bytes, and expressions that are compared with Spark.

The columns run through their values side by side; a case whose rows may raise has a twin that is
null there. Times without a day are missing, because Spark's answer changes daily.
"""

from __future__ import annotations

from decimal import Decimal
from itertools import cycle, islice
from typing import Any

import numpy as np

from nosync_nb.rows import Schema

DDL = (
    "row int, s string, v string, bi binary, t timestamp, tn timestamp_ntz, d double, f float,"
    " l bigint, i int, st struct<x:double,y:string,t:timestamp,u:date>, m map<string,double>,"
    " n array<array<timestamp_ntz>>, e array<struct<b:boolean,c:decimal(10,2)>>, fs array<float>"
)
SCHEMA = Schema.parse(DDL)

_ZONES = [
    "Z", "z", "UTC", "GMT", "UT", "utc", "+1:00", "+01:00", "-01:00", "+1", "+01", "-0130", "+013",
    "+01:3", "+1:3", "+01:30:15", "+013015", "+18:00", "+18:01", "-18:00", "+19:00", "UTC+1",
    "GMT+01:00", "UT-2:00", "UTC+", "UTCZ", "+01:60", "+", "-00:00", "Europe/Berlin",
    "Europe/berlin", "America/New_York", "EST", "MST", "PST", "CST", "IST", "JST", "EST5EDT",
    "Etc/GMT+5", "Nowhere/City", "05:30", "America/Sao_Paulo", "Australia/Lord_Howe",
    "Asia/Kolkata", "Africa/Monrovia",
]  # fmt: skip
_TIMES: list[str | None] = [
    None, "", " ", "2013", "2013-", "2013-1", "2013-01", "2013-01-", "2013-1-2", "2013-01-02",
    "2013-01-02 ", "2013-01-02T", "2013-01-02 3", "2013-01-02T03", "2013-01-02 03:", "2013-1-2 3:4",
    "2013-01-02 03:04", "2013-01-02 03:04:", "2013-01-02 03:04:5", "2013-01-02 03:04:05",
    "2013-01-02 03:04:05.", "2013-01-02 03:04:05.6", "2013-01-02T03:04:05.678901",
    "2013-01-02 03:04:05.6789019", "2013-01-02 03:04:05.000000999",
    "2013-01-02 03:04:05.123456789Z",
    "2013-01-02 03:04:05.Z", "2013-01-02 03:04Z", "2013-01-02 03:04 UTC", "2013-01-02Z",
    "2013-01-02 24:00:00", "2013-01-02 23:60:00", "2013-01-02 23:59:60", "2013-13-02", "2013-02-29",
    "2012-02-29", "2012-2-30 1:2:3", "0000-01-01 00:00:00", "0001-01-01", "-0001-12-31 23:59:59",
    "+2013-01-02 03:04:05", "12013-01-02", "+12013-01-02 03:04:05", "200000-12-31 23:59:59.999999",
    "294247-01-10 04:00:54.775807", "294247-01-10 04:00:54.775808", "-290308-12-21 19:59:05.224192",
    "-290308-12-21 19:59:05.224191", "999999-01-01", "1234567-01-01", "213-01-01", "\t2013-01-02\n",
    "\x7f2013-01-02\x00", "\u00a02013-01-02", "2013-01-02  03:04:05", "2013-01-02 03:04:05 ",
    "2013-01-02t03:04:05", "2013/01/02", "2013-01-02 03.04.05", "2013-01-02 03:04:05,6", "x", "now",
    "2013-001-02", "2013-01-002", "2013-01-02 003:04:05", "--2013-01-02", "\u0662013-01-02", "😀",
    "2013-03-31 02:30:00 Europe/Berlin", "2013-10-27 02:30:00 Europe/Berlin", "1-1-1", "-2013",
    "2013-03-10 02:30:00 America/New_York", "9013-07-02 03:04:05 Europe/Berlin",
    "12013-07-02 03:04:05 America/New_York", "2013-01-02 03:04:05\x1fUTC", "2013-01-02 03:04:05é",
    *(f"2013-01-02 03:04:05{zone}" for zone in _ZONES),
    *(f"1915-07-02 03:04:05.6 {zone}" for zone in _ZONES[::3]),
]  # fmt: skip
_NUMBERS: list[str | None] = [
    None, "", " ", "0", "-0", "+1", "1.", ".5", "1e3", " 1.5f", "1.5D ", "1.5fd", "1e", "e1",
    "0x1p3",
    "0x1.8p1", "0x1p-149", "0x1p-150", "0x1.000002p-150", "-0X.8P1f", "0x", "0x1", "Infinity",
    "inf",
    "-INF", "+Infinity", "nan", "NaN", "-nan", "1_0", "١", "1 0", "3.4028235e38", "3.4028236e38",
    "340282356779733661637539395458142568447", "340282356779733661637539395458142568448", "1e39",
    "1.4e-45", "7.0064923216240854e-46", "7.0064923216240853e-46", "7e-46", "1e-400", "1e999999999",
    "1e-999999999", "16777217", "16777217.0000000000000000001", "16777216.9999999999999999999",
    "16777219", "33554435", "0.1", "0.30000001192092896", "1.00000005960464477539062",
    "1.00000005960464477539063", "1.000000059604644775390625", "1.00000017881393432617187",
    "1.00000017881393432617188", "8.589973e9", "\x001", "1\x7f", "1\u00a0", "9007199254740993",
    "1d1",
    "00012.50", "1.7976931348623157e308", "1.7976931348623159e308", "x" * 30, "1e+5", "1E-05",
    "..5",
]  # fmt: skip
_BYTES: list[bytes | None] = [
    None, b"", b"a", b"abc", "é😀".encode(), b"\x00", b"\x7f", b" 12 ", b"2013-01-02",
]  # fmt: skip
_MICROS = [
    None, 0, -1, 1, 1_357_016_767_890_000, 1_357_016_767_000_100, -1_000_001, -86_400_000_000,
    253_402_300_799_999_999, 253_402_300_800_000_000, -62_135_596_800_000_000,
    -62_135_596_800_000_001, -62_167_219_200_000_001, 2**63 - 1, -(2**63), 2_147_483_647_999_999,
    2_147_483_648_000_000, -2_147_483_648_000_000, -2_147_483_648_000_001, 127_999_999, 128_000_000,
]  # fmt: skip
_DOUBLES = [
    None, 0.0, 1.0, -1.5, 0.001, 0.00099999, 1e7, 9999999.999999998, 12345678.9, 1e-5, 1e10, 1e20,
    1e22, 1.5e300, -1e-300, 5e-324, 1e-323, 1.7976931348623157e308, 2.2250738585072014e-308, 0.1,
    1 / 3,
    float("inf"), float("-inf"), float("nan"), 100.0, 123456.789, 9223372036854.775,
    -9223372036854.775,
    9223372036854.777, -9.3e18, 0.0000005, -0.0000015, 1e16, 123456789012345680.0,
]  # fmt: skip
_FLOATS = [
    None, 0.0, 1.0, -1.5, 0.1, 0.001, 0.0009, 1e7, 9999999.0, 16777216.0, 1e10,
    3.4028234663852886e38,
    1.401298464324817e-45, 1.1754943508222875e-38, float("inf"), float("nan"), 0.3, 1.2345678, 1e-5,
]  # fmt: skip
_LONGS = [None, 0, 1, -1, 9_223_372_036_854, 9_223_372_036_855, -9_223_372_036_854,
          -9_223_372_036_855, 2**63 - 1, -(2**63), 1_357_016_767]  # fmt: skip
_INTS = [None, 0, 1, -1, 2**31 - 1, -(2**31), 86_400, 7]
_LENGTH = max(map(len, (_TIMES, _NUMBERS)))


def _single(value: float | None) -> float | None:
    return None if value is None else float(np.float32(value))


def table() -> list[list[Any]]:
    singles = [_single(value) for value in _FLOATS]
    nested = _nested(singles)
    columns = [
        _TIMES, _NUMBERS, _BYTES, _MICROS, _MICROS[::-1], _DOUBLES, singles, _LONGS, _INTS, *nested,
    ]  # fmt: skip
    return [list(range(_LENGTH)), *(list(islice(cycle(column), _LENGTH)) for column in columns)]


def _nested(singles: list[float | None]) -> list[list[Any]]:
    days = [None, 0, -800_000, 3_000_000, 19_782]
    texts = [None, "", "a, b", "é", "null"]
    structs = [None, *zip(_DOUBLES[:15], cycle(texts), _MICROS, cycle(days), strict=False)]
    maps = [None, [], [("a", 1.5)], [("b", None), ("", 1e20)], [("é -> ", 0.001)]]
    arrays = [None, [], [None], [[], [None, 0]], [_MICROS[:6], None]]
    entries = [None, [], [None], [(True, "1.50"), (None, None)], [(False, "-0.01"), None]]
    return [structs, maps, arrays, [_exact(each) for each in entries], [None, [], singles[:12]]]


def _exact(entries: Any) -> Any:
    if entries is None:
        return None
    return [e and (e[0], None if e[1] is None else Decimal(e[1])) for e in entries]


PLAIN = """
cast(t~as~string) cast(tn~as~string) string(t) concat(t,'|',tn) concat(l/4,s) length(d)
cast(l~as~timestamp) cast(i~as~timestamp) cast(bi~as~string) cast(s~as~binary) binary(v)
cast(st~as~string) cast(m~as~string) cast(n~as~string) cast(e~as~string) cast(array(i,l)~as~string)
cast(array(array(s))~as~string) cast(map(coalesce(i,-5),st)~as~string) cast(array(t)~as~string)
string(st) cast(fs~as~string) cast(st~as~string)||s cast(t~as~double) cast(t~as~float)
cast(t~as~bigint) cast(array(true,i>0)~as~string) extract(second~from~t) extract(second~from~tn)
date_part('s',date'2013-01-01') null=null null<>null null<=>null null<null if(null=null,s,v)
concat() concat()~||~s decimal(i%7) timestamp(i) date('epoch') timestamp('2024-01-05~1:2:3.4')
timestamp('2024-01-05T01:02:03+02:00') timestamp('2024-1')
cast('2024-01-05~01:02:03.5~Europe/Berlin'~as~timestamp) hour('2024-01-05~05:00:00+1:00')
string(1e20) string(0.1f) string(double(1)/3) cast(1e-7~as~string) cast(123456789.0D~as~string)
cast(float(1e10)~as~string) cast(1.0E7D~as~string) cast(4.9E-324D~as~string)
cast(2e-323D~as~string) upper(i/4) 'x'||cast(i%7~as~float)
cast(cast(t~as~string)~as~timestamp)=t cast(cast(tn~as~string)~as~timestamp_ntz)=tn
try_cast(s~as~timestamp) try_cast(s~as~timestamp_ntz) try_cast(v~as~float) try_cast(t~as~int)
try_cast(t~as~tinyint) try_cast(d~as~timestamp) try_cast(f~as~timestamp) try_cast(v~as~double)
split(s,'-') split(s,'[-:~]') split(s,'') split(s,'',i%4) split(s,'-',i%4) split(s,'\\\\d+',2)
split(v,'[.e]',-1) size(split(s,':')) split(s,'é') split(i,'1') get(split(s,'2013-'),0)
make_timestamp(2000+i%100,7,4,5,6,7.5) make_timestamp(2013,1,2,3,59,60)
make_timestamp_ntz(-290307+pmod(i,7),1,31,0,0,pmod(i,60))
make_timestamp_ltz(2024,2,29,pmod(i,12)+11,pmod(i,60),0.000001D)
try_make_timestamp(2024,i,cast(l%40~as~int),0,0,l%100)
try_make_timestamp_ntz(2024+i%7,2,29,i%30,cast(l%70~as~int),i%70)
make_timestamp(2013,1,2,3,4,'5.25') make_timestamp(2013,null,2,3,4,5) try_to_timestamp(s)
try_to_timestamp(s,'yyyy-MM-dd') try_to_date(s) try_to_date(s,'yyyy-M-d') try_to_timestamp(t)
try_make_timestamp_ltz(2013,i,2,3,4,5) bi=v
v<bi bi<=>s coalesce(bi,v) 'abc'>=bi coalesce(try_cast(s~as~timestamp),t)
"""
PRINTED = {
    "cast(d as string)": float,
    "cast(f as string)": np.float32,
    "cast(float(1.17549435E-38) as string)": np.float32,
}
"""Texts of numbers whose digits depend on the version of Java, and how to read them."""
RAISING = {
    "cast(s as timestamp)": "try_cast(s as timestamp)",
    "cast(s as timestamp_ntz)": "try_cast(s as timestamp_ntz)",
    "timestamp(s)": "try_cast(s as timestamp)",
    "to_timestamp(s)": "try_to_timestamp(s)",
    "to_timestamp_ntz(s)": "try_cast(s as timestamp_ntz)",
    "s = t": "try_cast(s as timestamp) = t",
    "coalesce(t, s)": "coalesce(t, try_cast(if(t is null, s, null) as timestamp))",
    "cast(v as float)": "try_cast(v as float)",
    "float(v)": "try_cast(v as float)",
    "cast(d as timestamp)": "try_cast(d as timestamp)",
    "cast(f as timestamp)": "try_cast(f as timestamp)",
    "cast(t as int)": "try_cast(t as int)",
    "cast(t as smallint)": "try_cast(t as smallint)",
    "cast(t as tinyint)": "try_cast(t as tinyint)",
}


def every() -> list[tuple[str, str | None]]:
    plain = [(sql.replace("~", " "), None) for sql in PLAIN.split()]
    return [*plain, *((sql, None) for sql in PRINTED), *RAISING.items()]
