"""The tables of TPC-H after the distributions of its specification.

The generator is not `dbgen`: keys, dates, prices and the words that the queries look for follow the
specification, comments are shorter, and the random numbers are numpy's.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

Tables = dict[str, pa.Table]

DDL = {
    "region": "r_regionkey int, r_name string, r_comment string",
    "nation": "n_nationkey int, n_name string, n_regionkey int, n_comment string",
    "supplier": "s_suppkey bigint, s_name string, s_address string, s_nationkey int,"
    " s_phone string, s_acctbal decimal(15,2), s_comment string",
    "customer": "c_custkey bigint, c_name string, c_address string, c_nationkey int,"
    " c_phone string, c_acctbal decimal(15,2), c_mktsegment string, c_comment string",
    "part": "p_partkey bigint, p_name string, p_mfgr string, p_brand string, p_type string,"
    " p_size int, p_container string, p_retailprice decimal(15,2), p_comment string",
    "partsupp": "ps_partkey bigint, ps_suppkey bigint, ps_availqty int,"
    " ps_supplycost decimal(15,2), ps_comment string",
    "orders": "o_orderkey bigint, o_custkey bigint, o_orderstatus string,"
    " o_totalprice decimal(15,2), o_orderdate date, o_orderpriority string, o_clerk string,"
    " o_shippriority int, o_comment string",
    "lineitem": "l_orderkey bigint, l_partkey bigint, l_suppkey bigint, l_linenumber int,"
    " l_quantity decimal(15,2), l_extendedprice decimal(15,2), l_discount decimal(15,2),"
    " l_tax decimal(15,2), l_returnflag string, l_linestatus string, l_shipdate date,"
    " l_commitdate date, l_receiptdate date, l_shipinstruct string, l_shipmode string,"
    " l_comment string",
}

NATIONS = [
    *(("ALGERIA", 0), ("ARGENTINA", 1), ("BRAZIL", 1), ("CANADA", 1), ("EGYPT", 4)),
    *(("ETHIOPIA", 0), ("FRANCE", 3), ("GERMANY", 3), ("INDIA", 2), ("INDONESIA", 2)),
    *(("IRAN", 4), ("IRAQ", 4), ("JAPAN", 2), ("JORDAN", 4), ("KENYA", 0), ("MOROCCO", 0)),
    *(("MOZAMBIQUE", 0), ("PERU", 1), ("CHINA", 2), ("ROMANIA", 3), ("SAUDI ARABIA", 4)),
    *(("VIETNAM", 2), ("RUSSIA", 3), ("UNITED KINGDOM", 3), ("UNITED STATES", 1)),
]
REGIONS = ["AFRICA", "AMERICA", "ASIA", "EUROPE", "MIDDLE EAST"]
COLOURS = ["almond", "blue", "forest", "green", "ivory", "navy", "plum", "red", "rose", "tan"]
TYPES = [
    ["STANDARD", "SMALL", "MEDIUM", "LARGE", "ECONOMY", "PROMO"],
    ["ANODIZED", "BURNISHED", "PLATED", "POLISHED", "BRUSHED"],
    ["TIN", "NICKEL", "BRASS", "STEEL", "COPPER"],
]
CONTAINERS = [
    ["SM", "LG", "MED", "JUMBO", "WRAP"],
    ["CASE", "BOX", "BAG", "JAR", "PKG", "PACK", "CAN", "DRUM"],
]
SEGMENTS = ["AUTOMOBILE", "BUILDING", "FURNITURE", "MACHINERY", "HOUSEHOLD"]
PRIORITIES = ["1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW"]
INSTRUCTIONS = ["DELIVER IN PERSON", "COLLECT COD", "NONE", "TAKE BACK RETURN"]
MODES = ["REG AIR", "AIR", "RAIL", "SHIP", "TRUCK", "MAIL", "FOB", "AIR REG"]
COMMENTS = ["quickly", "special pending requests", "furiously even", "ironic", "deposits"]
COMPLAINTS = ["ideas", "Customer slow Complaints", "Customer Recommends", "packages", "theodolites"]

_START, _END = date(1992, 1, 1).toordinal(), date(1998, 12, 31).toordinal()
_TODAY = date(1995, 6, 17).toordinal()
_EPOCH = date(1970, 1, 1).toordinal()


def _days(ordinals: Any) -> pa.Array:
    return pa.array(np.asarray(ordinals, np.int32) - _EPOCH, pa.int32()).cast(pa.date32())


def _money(cents: Any) -> pa.Array:
    return pa.array([Decimal(int(c)).scaleb(-2) for c in cents], pa.decimal128(15, 2))


def tables(scale: float = 0.01, *, seed: int = 1) -> Tables:
    """The eight tables at a scale factor."""
    rng = np.random.default_rng(seed)

    def of(words: Sequence[str], n: int) -> Any:
        return np.array(words, object)[rng.integers(0, len(words), n)]

    def joined(lists: Sequence[Sequence[str]], n: int) -> Any:
        return [" ".join(each) for each in zip(*(of(words, n) for words in lists), strict=True)]

    def phones(nation: Any) -> list[str]:
        return [f"{10 + n}-{k % 900 + 100}-555-1234" for k, n in enumerate(nation)]

    suppliers, customers = int(10_000 * scale), int(150_000 * scale)
    parts, orders = int(200_000 * scale), int(1_500_000 * scale)
    keys = np.arange(1, parts + 1)
    prices = 90_000 + (keys // 10) % 20_001 + 100 * (keys % 1000)  # in cents
    s_nation, c_nation = rng.integers(0, 25, suppliers), rng.integers(0, 25, customers)
    found: dict[str, dict[str, Any]] = {
        "region": {
            "r_regionkey": pa.array(range(5), pa.int32()),
            "r_name": REGIONS,
            "r_comment": COMMENTS,
        },
        "nation": {
            "n_nationkey": pa.array(range(25), pa.int32()),
            "n_name": [name for name, _ in NATIONS],
            "n_regionkey": pa.array([region for _, region in NATIONS], pa.int32()),
            "n_comment": of(COMMENTS, 25),
        },
        "supplier": {
            "s_suppkey": np.arange(1, suppliers + 1),
            "s_name": [f"Supplier#{k:09d}" for k in range(1, suppliers + 1)],
            "s_address": [f"street {k}" for k in range(suppliers)],
            "s_nationkey": pa.array(s_nation, pa.int32()),
            "s_phone": phones(s_nation),
            "s_acctbal": _money(rng.integers(-99_999, 1_000_000, suppliers)),
            "s_comment": of(COMPLAINTS, suppliers),
        },
        "customer": {
            "c_custkey": np.arange(1, customers + 1),
            "c_name": [f"Customer#{k:09d}" for k in range(1, customers + 1)],
            "c_address": [f"street {k}" for k in range(customers)],
            "c_nationkey": pa.array(c_nation, pa.int32()),
            "c_phone": phones(c_nation),
            "c_acctbal": _money(rng.integers(-99_999, 1_000_000, customers)),
            "c_mktsegment": of(SEGMENTS, customers),
            "c_comment": of(COMMENTS, customers),
        },
        "part": {
            "p_partkey": keys,
            "p_name": joined([COLOURS] * 3, parts),
            "p_mfgr": [f"Manufacturer#{k}" for k in rng.integers(1, 6, parts)],
            "p_brand": [f"Brand#{k}{j}" for k, j in rng.integers(1, 6, (parts, 2))],
            "p_type": joined(TYPES, parts),
            "p_size": pa.array(rng.integers(1, 51, parts), pa.int32()),
            "p_container": joined(CONTAINERS, parts),
            "p_retailprice": _money(prices),
            "p_comment": of(COMMENTS, parts),
        },
    }
    of_part = np.repeat(keys, 4)
    found["partsupp"] = {
        "ps_partkey": of_part,
        "ps_suppkey": _supplier(of_part, np.tile(np.arange(4), parts), suppliers),
        "ps_availqty": pa.array(rng.integers(1, 10_000, 4 * parts), pa.int32()),
        "ps_supplycost": _money(rng.integers(100, 100_001, 4 * parts)),
        "ps_comment": of(COMMENTS, 4 * parts),
    }
    o_key = np.arange(1, orders + 1)
    o_date = rng.integers(_START, _END - 151, orders)
    lines = rng.integers(1, 8, orders)
    first = np.repeat(np.cumsum(lines) - lines, lines)
    n = len(first)
    l_part = rng.integers(1, parts + 1, n)
    quantity = rng.integers(1, 51, n)
    extended = quantity * prices[l_part - 1]
    discount, tax = rng.integers(0, 11, n), rng.integers(0, 9, n)
    shipped = np.repeat(o_date, lines) + rng.integers(1, 122, n)
    received = shipped + rng.integers(1, 31, n)
    is_open = shipped > _TODAY
    opened = np.add.reduceat(is_open, np.cumsum(lines) - lines)
    charged = extended * (100 + tax) * (100 - discount) // 10_000
    buyers = np.arange(1, customers + 1)
    buyers = buyers[buyers % 3 > 0]  # a third of the customers never buys
    found["orders"] = {
        "o_orderkey": o_key,
        "o_custkey": rng.choice(buyers, orders),
        "o_orderstatus": np.where(opened == 0, "F", np.where(opened == lines, "O", "P")),
        "o_totalprice": _money(np.add.reduceat(charged, np.cumsum(lines) - lines)),
        "o_orderdate": _days(o_date),
        "o_orderpriority": of(PRIORITIES, orders),
        "o_clerk": [f"Clerk#{k:09d}" for k in rng.integers(1, 11, orders)],
        "o_shippriority": pa.array(np.zeros(orders), pa.int32()),
        "o_comment": of(COMMENTS, orders),
    }
    found["lineitem"] = {
        "l_orderkey": np.repeat(o_key, lines),
        "l_partkey": l_part,
        "l_suppkey": _supplier(l_part, rng.integers(0, 4, n), suppliers),
        "l_linenumber": pa.array(np.arange(n) - first + 1, pa.int32()),
        "l_quantity": _money(100 * quantity),
        "l_extendedprice": _money(extended),
        "l_discount": _money(discount),
        "l_tax": _money(tax),
        "l_returnflag": np.where(received > _TODAY, "N", of(["R", "A"], n)),
        "l_linestatus": np.where(is_open, "O", "F"),
        "l_shipdate": _days(shipped),
        "l_commitdate": _days(np.repeat(o_date, lines) + rng.integers(30, 91, n)),
        "l_receiptdate": _days(received),
        "l_shipinstruct": of(INSTRUCTIONS, n),
        "l_shipmode": of(MODES, n),
        "l_comment": of(COMMENTS, n),
    }
    return {name: pa.table(columns) for name, columns in found.items()}


def _supplier(part: Any, which: Any, suppliers: int) -> Any:
    """The supplier of a part, by the formula of the specification."""
    return (part + which * (suppliers // 4 + (part - 1) // suppliers)) % suppliers + 1
