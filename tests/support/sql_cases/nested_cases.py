"""Rows with arrays, maps and structs, and expressions that are compared with Spark.

The values have nulls at every depth, NaN, infinities, empty ones, surrogates, days before 1582 and
after 9999. A case whose rows may raise has a twin that is null there.
"""

from __future__ import annotations

import math
import random
from typing import Any

from nosync_nb.rows import Schema

DDL = (
    "row int, i int, j int, l bigint, s string, bo boolean, a array<int>, b array<int>,"
    " w array<bigint>, d array<double>, q array<string>, t array<date>, ts array<timestamp>,"
    " m map<string,int>, k map<int,array<string>>, st struct<x:int,Y:string,z:array<int>>,"
    " n array<array<int>>, e array<struct<b:int,c:string>>, p array<decimal(10,2)>"
)
_INTS = [None, 0, 1, 2, 3, -7, 5, 2**31 - 1, -(2**31)]
_REALS = [None, 0.0, 1.5, -2.5, math.nan, math.inf, -math.inf, 1e300]
_TEXTS = [None, "", "a", "b", "é", "😀", "aa", "Z"]
_DAYS = [None, 0, -1, 19782, -800_000, 3_000_000]


def table() -> list[list[Any]]:
    """Columns of raw values: dates are days, structs tuples, maps lists of pairs."""
    chosen = random.Random(7)

    def some(pool: list[Any], most: int = 4) -> list[Any] | None:
        if chosen.random() < 0.12:
            return None
        return [chosen.choice(pool) for _ in range(chosen.randint(0, most))]

    def pairs(keys: list[Any], value: Any) -> list[Any] | None:
        if chosen.random() < 0.12:
            return None
        return [(key, value()) for key in keys if chosen.random() < 0.6]

    def struct() -> tuple[Any, ...] | None:
        own = (chosen.choice(_INTS), chosen.choice(_TEXTS), some(_INTS))
        return None if chosen.random() < 0.12 else own

    pick = chosen.choice
    rows = []
    for row in range(90):
        entry = [(pick(_INTS), pick(_TEXTS)) for _ in range(3)]
        rows.append(
            [
                row, pick(_INTS), pick([None, 0, 1, 2, -1, 3]), pick(_INTS), pick(_TEXTS),
                pick([None, True, False]), some(_INTS), some(_INTS[:5]), some([*_INTS, 2**40]),
                some(_REALS), some(_TEXTS), some(_DAYS),
                some([None if v is None else v * 86_400_000_000 + 7 for v in _DAYS]),
                pairs(["a", "b", "é"], lambda: pick(_INTS)),
                pairs([1, 2], lambda: some(_TEXTS)), struct(),
                None if row % 9 == 0 else [some(_INTS) for _ in range(row % 4)],
                some([*entry, None]), some([None]),
            ]
        )  # fmt: skip
    return [list(column) for column in zip(*rows, strict=True)]


SCHEMA = Schema.parse(DDL)

PLAIN = """
size(a) size(m) cardinality(n) array_size(q) a=b a<>b a<b a<=b a>b a>=b a<=>b d=d d<array(1.5D)
st=named_struct('x',1,'Y','a','z',array(1)) e=e t<t st<st st.x st.Y st.X ST.x st['x']
get(a,0) get(a,j) get(a,-1) get(q,1) get(d,2) get(t,0) get(n,1) get(ts,1) get(e,0).b get(get(n,0),0)
try_element_at(a,1) try_element_at(a,-1) try_element_at(a,9) try_element_at(e,1).c m['a'] m[s]
m['zz'] k[1] k[j] element_at(m,'b') try_element_at(m,'a') element_at(k,2) array(i,j) array(i,l)
array(s,'x') array(a,b) array(i,2.5D) array(st,st) struct(i,s) struct(a,st) struct(i%7,s~as~t)
named_struct('q',i).q named_struct('q',a,'r',m).r['a'] map('a',i,'b',j) map(1,s) map('x',a)['x']
array_contains(a,1) array_contains(w,1) array_contains(d,double('nan')) array_contains(q,s)
array_contains(n,a) array_contains(t,date'1970-01-01') array_contains(a,i) array_position(a,i)
array_position(q,'a') array_remove(a,1) array_remove(d,double('nan')) array_max(a) array_min(a)
array_max(d) array_min(d) array_max(q) array_min(q) array_max(t) array_min(ts) array_max(n)
array_min(e) sort_array(a) sort_array(a,false) sort_array(d) sort_array(q) sort_array(q,true)
sort_array(n) sort_array(e,false) array_sort(a) array_sort(d) array_sort(q) array_distinct(a)
array_distinct(d) array_distinct(q) array_distinct(n) array_distinct(e) array_union(a,b)
array_intersect(a,b) array_except(a,b) arrays_overlap(a,b) array_union(n,n) array_append(a,i)
array_prepend(a,i) array_append(q,s) array_append(a,null+1) array_compact(a) array_compact(n)
array_insert(a,2,i) array_insert(a,-1,i) array_insert(a,5,i) array_insert(a,-6,9) array_repeat(s,2)
array_repeat(i,j) array_repeat(a,2) array_join(q,'-') array_join(q,s,'?') array_join(a,',')
flatten(n) flatten(array(a,b)) sequence(1,5) sequence(5,1) sequence(j,3) sequence(1L,10L,3L)
sequence(10,1,-4) map_keys(m) map_values(m) map_entries(m) map_keys(k) map_values(k)
map_contains_key(m,'a') map_contains_key(m,s) map_contains_key(k,1) typeof(a) typeof(st) typeof(i)
typeof(m) e.b e.c get(e.b,0) transform(e,x->x.b) transform(e,x->x.c)
transform(a,x->coalesce(x,0)%7) transform(a,(x,n)->n) transform(a,x->x~is~null)
transform(q,x->upper(x)) transform(n,x->size(x))
transform(n,x->transform(x,y->coalesce(y,0)%2+size(x))) transform(t,x->year(x))
transform(ts,x->hour(x)) transform(d,x->x*2) transform(a,x->array(x,i))
transform(a,x->struct(x~as~v,s)) transform(q,x->concat(x,s)) transform(a,x->j) transform(p,x->x)
filter(a,x->x>1) filter(a,(x,n)->n>0) filter(q,x->x~like~'a%') filter(n,x->size(x)>1)
filter(e,x->x.b>0) filter(a,x->x>i) filter(d,x->isnan(x)) filter(t,x->x>date'1800-01-01')
exists(a,x->x>1) exists(a,x->x~is~null) forall(a,x->x>0) forall(q,x->length(x)>0)
exists(n,x->exists(x,y->y=1)) exists(a,x->bo) forall(d,x->x<1e10)
aggregate(a,0L,(z,x)->z+coalesce(x,0))
aggregate(a,0,(z,x)->z+coalesce(x%7,0)) aggregate(q,'',(z,x)->concat(z,coalesce(x,'?')))
aggregate(a,0L,(z,x)->z+coalesce(x,0),z->z*2.5D) reduce(b,i,(z,x)->coalesce(x,z))
aggregate(d,0D,(z,x)->greatest(z,x)) aggregate(n,0,(z,x)->z+size(x)) map_filter(m,(k,v)->v>1)
map_filter(m,(k,v)->k=s) transform_values(m,(k,v)->concat(k,v)) transform_values(k,(k,v)->size(v))
transform_keys(m,(k,v)->concat(k,'!')) upper(st.Y) st.x+1L i+m['a']*0L size(array_union(a,b))>2
a~is~null st~is~not~null coalesce(st.x,get(a,0),-1) if(array_contains(a,1),s,'none')
size(filter(a,x->x>0))=0
arrays_zip(a,b) arrays_zip(a) arrays_zip(q,n,map_keys(m)) get(arrays_zip(e,d),0).d
map_from_arrays(map_keys(m),map_values(m)) map_from_arrays(map_keys(k),map_values(k))
str_to_map(s) str_to_map(s,'x','a') str_to_map(concat(s,':',i))
array_sort(a,(x,y)->case~when~x~is~null~then~1~when~y~is~null~then~-1~when~x>y~then~-1~else~1~end)
array_sort(q,(x,y)->coalesce(length(x),0)-coalesce(length(y),0))
array_sort(d,(x,y)->if(x<=>y,0,if(x<y,-1,1)))
array_sort(n,(x,y)->coalesce(size(y),0)-coalesce(size(x),0))
sequence(date'2024-01-31',date'2024-12-31',interval~1~month)
sequence(date'2024-01-01',date_add(date'2024-01-01',coalesce(j,0)))
sequence(timestamp'2024-01-01',timestamp'2024-01-01~10:00:00',interval~100~minute)
"""
RAISING: dict[str, str | None] = {
    "a[0]": "get(a, 0)",
    "a[j]": "get(a, j)",
    "q[1]": "get(q, 1)",
    "array(i, 2)[j]": "get(array(i, 2), j)",
    "element_at(a, 1)": "try_element_at(a, 1)",
    "element_at(a, -2)": "try_element_at(a, -2)",
    "st.z[1]": "get(st.z, 1)",
    "n[0][0]": "get(get(n, 0), 0)",
    "slice(a, 1, j)": "if(j >= 0, slice(a, 1, if(j >= 0, j, 0)), if(a is null, null, null))",
    "slice(a, -2, 1)": "slice(a, -2, 1)",
    "slice(a, j, 2)": "if(j <> 0, slice(a, if(j <> 0, j, 1), 2), null)",
    "map(s, i)": "if(s is null, null, map(coalesce(s, ''), i))",
    "transform(a, x -> x + 1)": "if(forall(a, x -> coalesce(x, 0) < 2147483647), transform(a,"
    " x -> if(x = 2147483647, 0, x) + 1), null)",
}  # fmt: skip


def every() -> list[tuple[str, str | None]]:
    plain = [(sql.replace("~", " "), None) for sql in PLAIN.split()]
    return [*plain, *((sql, twin) for sql, twin in RAISING.items() if twin is not None)]
