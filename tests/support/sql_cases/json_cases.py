"""Texts that are JSON or nearly JSON, paths into them, and values written as JSON.

The columns of text_cases.py are beside them.
"""

from __future__ import annotations

from itertools import cycle, islice
from typing import Any

from nosync_nb.rows import Schema
from sql_cases import text_cases

SCHEMA = Schema.parse(f"{text_cases.DDL}, j string")
TEXTS: list[str | None] = [
    None, "", " ", "null", "true", "truex", "true x", "1", "1x", "01", "1 2", "1.", "-", "-0",
    "1.50",
    '"a"', "'a'", "'a\"b'", "'a\\'b'", "[", "[]", "[1,2]", "[1,]", "[1 2]", "{}", "{", "}", "x",
    '{"a":1}', '{"a":1} x', '{"a":1', '{"a":1,}', "{a:1}", "{'a':1}", "{'a':'b\"c','b':\"it's\"}",
    '{"a":null}', '{"a":null,"a":2}', '{"a":1,"a":2}', '{"a":{"b":1},"a":{"c":[5]}}', '{"A":1}',
    '{"a":[0,null,"x",1.10,1e3,-0,-0.0,1e400,true,{"b":[[]]},"\\u00e9\\n\\/\\u001f"]}',
    '{"a":{"b":{"c":"\\ud83d\\ude00"}}}', '{"a":"\\ud800"}', '{"a":["\\ud800"],"b":1}',
    '{"a":"x\ty\nz"}', '{"a":["x\ty\x01"]}', '{"a":"\\x"}', '{"a":"\\u12"}', '{"a":NaN}',
    '{"a":+1}',
    '{"a":-Infinity}', '{"a":.5}', '{"a":0x1}', '{"a":123456789012345678901234567890}',
    '{"a":1E-7}',
    '{"a":12345678901234567890.125}', '{"a b":1}', '{"":1}', '{"a":{"b":[1,{"c":2}]}}',
    "[[1,2],[3]]",
    '[{"a":1},{"a":2}]', ' \t\r\n{"a" : [ 1 , { "b" : "c" } ] } ', "\x0b1", "\ufeff1",
    '{"a":"é\u2028/"}',
    '{"a" 1}', '{"a":1 "b":2}', "/* */1", "#\n1", '{"a":tru}', '{"a":True}', "nul", "[1]]",
    '{"b":"é"}',
    '{"a":1e5,"b":{"a":[[1],[2,[3]]]}}', "9" * 400, "[" * 60 + "]" * 60, '"\\"\\\\\\b\\f"',
    '{"a":[{"b":1},{"b":"x"},null],"b":7}', '{"a":[{"b":1},2]}', '[1,"x"]', '[{"a":1},{"a":"x"}]',
    '[{"a":1},5]', "[[1],[2,null],null]", '[[1],["x"]]', '[1,2,null]', '{"a":true,"A":128,"b":2}',
    '{"a":1,"a":"x"}', '{"a":"NaN","b":[1.50,"é"]}', '{"a":"Infinity"}', '{"a":"-INF"}',
    '{"a":"1"}',
    '{"a":2147483648,"b":9223372036854775807}', '{"a":1e400}', '{"a":-1.5}', '{"a":""}', '["",1.5]',
    '{"a":1,"b":"x"', "{1:2}", "[\"a\\'b\"]", "['\\\\','\"','\\\\\\'é']", "['a\\\"b']",
    '["😀","x"]', '"😀"',
    '["\\udc00x\\ud83d"]', '{"a":[{"b":[1,2]},{"b":["x"]},{"b":[]}]}', '{"a":[],"a":[["x",[1]]]}',
    '{"a":"2013-01-01"}', '{"a":"2013-1-2 x","b":"2013-01-01T10:00:00.5Z"}', '{"a":15706,"b":-7}',
    '{"a":"15706"}', '{"a":"-141427","b":"-141428"}', '{"a":"-719164","b":"20130"}', '{"a":" 7"}',
    '{"a":"2000-01-01T00:00GMT+01:00","b":"2000-01-01GMT"}', '{"a":1.5,"b":1.005}',
    '{"a":"-999999"}',
    '{"a":"1,234.565","b":"12"}', '{"a":99999999.995,"b":99999.5}', '{"a":".5","b":"1e2"}',
    '{"a":9223372036854775807}', '{"a":"+5","b":"2013-01-01 10:00:00+02:00"}', '{"a":"١"}',
    '{"a":["2013-01-01",1.25,"x"],"b":-0.5}', '{"a":"-5","b":"5"}', '["2013-01-01","x"]',
    '{"a":["2013-01-01",null]}', '{"a":[1.25,"3",-4]}', '{"a":"1e400","b":1e-400}',
    '[[],[[]],["x"]]', '["x"]', '[[["x",[1,"y"]]],[[null]]]', '{"a":["x"]}', '{"a":[{"b":["x"]}]}',
]  # fmt: skip
PATHS = """
$ $.a $.b $.A $.a.b $.a.b.c $['a'] $['a~b'] $.a~b $[0] $[1] $.a[0] $.a[1] $.a[3] $.a[9].b $.a[10]
$[0].a $[0][1] $.b.a[1][1][0] $.a['b'][1].c $.a[0].b $[99]
$[*] $.a[*] $[*].a $.a[*].b $[*][*] $[*][0] $[0][*] $.a[0][*] $.b.a[*][*] $.b.a[*][*][*] $.a.b[*]
$.a[*][*].b $[*][*][*] $.a[*].b[*] $[*].a[*] $.b.a[1][*][0] $[*][*][0] $[*][0][*] $.a[*].b[*][0]
"""
SCHEMAS = """
a~int a~string a~double,b~string a~boolean,A~tinyint a~struct<b:string,c:int> a~array<string>
a~array<int>,b~bigint array<boolean> array<int> array<array<int>>
a~decimal(10,2) a~decimal(38,18),b~decimal(5,0) a~array<decimal(20,1)> a~date a~timestamp
a~date,b~timestamp a~array<timestamp> array<date> a~struct<b:decimal(3,1),c:date>
struct<a:array<struct<b:int>>> array<string> array<double> a~struct<b:struct<c:string>>,`a~b`~int
"""
WRITTEN = """
st m array(array(tn)) array(t) array(tn) struct(s,l,i,bi)
struct(v~as~`a\"b`) array(map(coalesce(i%7,9),l)) e
array(st,st) struct(round(d%100,1)~as~x) map(coalesce(s,''),struct(i)) map(date'2013-01-01',s)
array(cast(i~as~decimal(20,9))) array(cast(i%7~as~decimal(38,9))) array(float('nan'),0.5f)
named_struct('n',null+1,'a',array(null+1,i),'b',i>0,'f',fs) map(coalesce(l,5),array(s)) array(s,j)
array(double('nan'),double('inf'),1e20,0.001D) map(coalesce(i%9,0),dt) map('x',named_struct('d',dt))
""".replace("dt", "date_add(date'2013-01-01',i%9)")


def table() -> list[list[Any]]:
    columns = text_cases.table()
    return [*columns, list(islice(cycle(TEXTS), len(columns[0])))]


def every() -> list[tuple[str, str | None]]:
    made = [f'from_json({text}, "{schema}")' for schema in SCHEMAS.split() for text in ("j", "s")]
    read = [f'get_json_object(j, "{path}")' for path in PATHS.split()]
    written = [f"to_json({value})" for value in WRITTEN.split()]
    return [(sql.replace("~", " "), None) for sql in (*read, *made, *written)]
