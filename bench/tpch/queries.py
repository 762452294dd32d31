"""Eight queries of TPC-H, each as SQL and as stages of NoSync, in the order of FROM and WHERE.

Joins come in the order of the FROM clause and the filter after them, as people copy a query: the
engine has to find the best order. Parameters are those of TPC-H's validation. Keys complete `order
by` before a `limit`, so that a result is one set of rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

REVENUE = "l_extendedprice * (1 - l_discount)"
DISCOUNTED = "l_discount between 0.045D and 0.075D"
"""Between 0.05 and 0.07, with doubles of two decimals that no rounding takes across."""

SQL = {
    "q1": f"""
        select l_returnflag, l_linestatus, sum(l_quantity), sum(l_extendedprice),
            sum({REVENUE}), sum({REVENUE} * (1 + l_tax)), avg(l_quantity), avg(l_extendedprice),
            avg(l_discount), count(*)
        from lineitem where l_shipdate <= date '1998-09-02' group by all""",
    "q3": f"""
        select o_orderkey, o_orderdate, o_shippriority, sum({REVENUE}) as revenue
        from customer, orders, lineitem
        where c_mktsegment = 'BUILDING' and c_custkey = o_custkey and l_orderkey = o_orderkey
            and o_orderdate < date '1995-03-15' and l_shipdate > date '1995-03-15'
        group by all order by revenue desc, o_orderdate, o_orderkey limit 10""",
    "q4": """
        select o_orderpriority, count(*) from orders
        where o_orderdate >= date '1993-07-01' and o_orderdate < date '1993-10-01' and exists (
            select * from lineitem where l_orderkey = o_orderkey and l_commitdate < l_receiptdate)
        group by all""",
    "q5": f"""
        select n_name, sum({REVENUE}) from customer, orders, lineitem, supplier, nation, region
        where c_custkey = o_custkey and l_orderkey = o_orderkey and l_suppkey = s_suppkey
            and c_nationkey = s_nationkey and s_nationkey = n_nationkey
            and n_regionkey = r_regionkey and r_name = 'ASIA'
            and o_orderdate >= date '1994-01-01' and o_orderdate < date '1995-01-01'
        group by all""",
    "q6": f"""
        select sum(l_extendedprice * l_discount) from lineitem
        where l_shipdate >= date '1994-01-01' and l_shipdate < date '1995-01-01'
            and {DISCOUNTED.replace("D", "")} and l_quantity < 24""",
    "q10": f"""
        select c_custkey, c_name, c_acctbal, n_name, c_address, c_phone, c_comment,
            sum({REVENUE}) as revenue
        from customer, orders, lineitem, nation
        where c_custkey = o_custkey and l_orderkey = o_orderkey and c_nationkey = n_nationkey
            and o_orderdate >= date '1993-10-01' and o_orderdate < date '1994-01-01'
            and l_returnflag = 'R'
        group by all order by revenue desc, c_custkey limit 20""",
    "q12": """
        select l_shipmode,
            count(*) filter (where o_orderpriority in ('1-URGENT', '2-HIGH')),
            count(*) filter (where o_orderpriority not in ('1-URGENT', '2-HIGH'))
        from orders, lineitem
        where o_orderkey = l_orderkey and l_shipmode in ('MAIL', 'SHIP')
            and l_commitdate < l_receiptdate and l_shipdate < l_commitdate
            and l_receiptdate >= date '1994-01-01' and l_receiptdate < date '1995-01-01'
        group by all""",
    "q18": """
        select c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice, sum(l_quantity)
        from customer, orders, lineitem
        where o_orderkey in (
                select l_orderkey from lineitem group by l_orderkey having sum(l_quantity) > 300)
            and c_custkey = o_custkey and o_orderkey = l_orderkey
        group by all order by o_totalprice desc, o_orderdate, o_orderkey limit 100""",
}
"""As DuckDB has them; the columns of each stand in the order of ours."""


def stages(of: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the queries over collections of TPC-H's tables, by name."""
    joined = _joined(of)
    return {
        "q1": _q1(of),
        "q3": joined.filter(
            "c_mktsegment = 'BUILDING' and o_orderdate < date '1995-03-15'"
            " and l_shipdate > date '1995-03-15'"
        )
        .group_by("o_orderkey", "o_orderdate", "o_shippriority")
        .agg(revenue=f"sum({REVENUE})")
        .group_by()
        .top(10, by="revenue desc, o_orderdate, o_orderkey"),
        "q4": of["orders"]
        .join(
            of["lineitem"].filter("l_commitdate < l_receiptdate"),
            on={"o_orderkey": "l_orderkey"},
            how="semi",
        )
        .filter("o_orderdate >= date '1993-07-01' and o_orderdate < date '1993-10-01'")
        .group_by("o_orderpriority")
        .count(),
        "q5": joined.join(
            of["supplier"], on={"l_suppkey": "s_suppkey", "c_nationkey": "s_nationkey"}
        )
        .join(of["nation"], on={"c_nationkey": "n_nationkey"})
        .join(of["region"], on={"n_regionkey": "r_regionkey"})
        .filter(
            "r_name = 'ASIA' and o_orderdate >= date '1994-01-01'"
            " and o_orderdate < date '1995-01-01'"
        )
        .group_by("n_name")
        .agg(revenue=f"sum({REVENUE})"),
        "q6": of["lineitem"]
        .filter(
            "l_shipdate >= date '1994-01-01' and l_shipdate < date '1995-01-01'"
            f" and {DISCOUNTED} and l_quantity < 24"
        )
        .agg(revenue="sum(l_extendedprice * l_discount)"),
        "q10": joined.join(of["nation"], on={"c_nationkey": "n_nationkey"})
        .filter(
            "o_orderdate >= date '1993-10-01' and o_orderdate < date '1994-01-01'"
            " and l_returnflag = 'R'"
        )
        .group_by("c_custkey", "c_name", "c_acctbal", "n_name", "c_address", "c_phone", "c_comment")
        .agg(revenue=f"sum({REVENUE})")
        .group_by()
        .top(20, by="revenue desc, c_custkey"),
        "q12": _q12(of),
        "q18": _q18(of, joined),
    }


def _joined(of: Mapping[str, Any]) -> Any:
    """Joins customers, their orders and the lines of these, from which four queries begin."""
    orders = of["customer"].join(of["orders"], on={"c_custkey": "o_custkey"})
    return orders.join(of["lineitem"], on={"o_orderkey": "l_orderkey"})


def _q1(of: Mapping[str, Any]) -> Any:
    shipped = of["lineitem"].filter("l_shipdate <= date '1998-09-02'")
    return shipped.group_by("l_returnflag", "l_linestatus").agg(
        sum_qty="sum(l_quantity)",
        sum_base_price="sum(l_extendedprice)",
        sum_disc_price=f"sum({REVENUE})",
        sum_charge=f"sum({REVENUE} * (1 + l_tax))",
        avg_qty="avg(l_quantity)",
        avg_price="avg(l_extendedprice)",
        avg_disc="avg(l_discount)",
        count_order="count(*)",
    )


def _q12(of: Mapping[str, Any]) -> Any:
    lines = of["orders"].join(of["lineitem"], on={"o_orderkey": "l_orderkey"})
    late = lines.filter(
        "l_shipmode in ('MAIL', 'SHIP') and l_commitdate < l_receiptdate"
        " and l_shipdate < l_commitdate and l_receiptdate >= date '1994-01-01'"
        " and l_receiptdate < date '1995-01-01'"
    )
    urgent = "o_orderpriority in ('1-URGENT', '2-HIGH')"
    return late.group_by("l_shipmode").agg(
        high_line_count=f"count_if({urgent})", low_line_count=f"count_if(not {urgent})"
    )


def _q18(of: Mapping[str, Any], joined: Any) -> Any:
    sums = of["lineitem"].group_by("l_orderkey").agg(quantity="sum(l_quantity)")
    large = joined.join(sums.filter("quantity > 300"), on={"o_orderkey": "l_orderkey"}, how="semi")
    keys = ("c_name", "c_custkey", "o_orderkey", "o_orderdate", "o_totalprice")
    totals = large.group_by(*keys).agg(quantity="sum(l_quantity)")
    return totals.group_by().top(100, by="o_totalprice desc, o_orderdate, o_orderkey")
