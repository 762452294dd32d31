"""Nexmark: an auction site's events in rounds, with late events and retractions, and 23 queries.

The queries are those of the Nexmark benchmark (q0 to q22) over finite tables. A window of time is
computed from `ms`, the event time in milliseconds; processing time is replaced by it. The order of
every window function is total up to equal rows, which DuckDB needs as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from random import Random
from typing import Any

DDL = {
    "person": "id bigint, name string, city string, state string, ms bigint, moment timestamp",
    "auction": "id bigint, item string, initial bigint, reserve bigint, ms bigint, expires bigint,"
    " seller bigint, category bigint, moment timestamp",
    "bid": "auction bigint, bidder bigint, price bigint, channel string, url string, ms bigint,"
    " moment timestamp, extra string",
}

Row = tuple[Any, ...]
Round = dict[str, tuple[list[Row], list[Row]]]
"""For each table, the rows that a round inserts and removes."""

_START = datetime(2024, 3, 1, 23, 59, 0)
_PLACES = [("Portland", "OR"), ("Boise", "ID"), ("Bend", "OR"), ("Kent", "WA"), ("Phoenix", "AZ")]
_CHANNELS = ["Google", "Apple", "Facebook", "Baidu", "channel-17", "channel-230"]


def rounds(count: int, *, events: int = 400, seed: int = 1) -> Iterator[Round]:
    """Rounds of events: of 50 events one is a person, three are auctions, and the others bids.

    A tenth of the events comes a round late. From the second round on, some bids and auctions are
    removed, and some of the bids come again with another price.
    """
    rng, late, number = Random(seed), [], 0
    present: dict[str, list[Row]] = {name: [] for name in DDL}
    for turn in range(count):
        fresh = []
        for _ in range(events):
            fresh.append(_event(rng, number))
            number += 1
        postponed = [event for event in fresh if rng.random() < 0.1]
        inserts: dict[str, list[Row]] = {name: [] for name in DDL}
        for name, row in [*late, *(e for e in fresh if e not in postponed)]:
            inserts[name].append(row)
        late = postponed
        removals: dict[str, list[Row]] = {name: [] for name in DDL}
        for name, share in (("bid", 0.05), ("auction", 0.02)) if turn else ():
            for row in rng.sample(present[name], int(share * len(present[name]))):
                present[name].remove(row)
                removals[name].append(row)
                if name == "bid" and rng.random() < 0.5:
                    inserts[name].append((*row[:2], row[2] + rng.randrange(1, 500), *row[3:]))
        for name, rows in inserts.items():
            present[name] += rows
        yield {name: (inserts[name], removals[name]) for name in DDL}


def _event(rng: Random, number: int) -> tuple[str, Row]:
    ms = number * 40 + rng.randrange(40)
    at = _START + timedelta(milliseconds=ms)
    group, place = divmod(number, 50)
    if place == 0:
        city, state = rng.choice(_PLACES)
        return "person", (group, f"person {group % 7}", city, state, ms, at)
    auctions = 3 * group + min(place, 3)
    if place < 4:
        first = rng.randrange(1, 1_000)
        expires = ms + rng.randrange(1_000, 20_000)
        seller = max(0, group - rng.randrange(4))
        category = 10 + rng.randrange(5)
        row = (auctions, f"item {auctions}", first, first + rng.randrange(900))
        return "auction", (*row, ms, expires, seller, category, at)
    auction = max(1, auctions - int(rng.expovariate(0.3)))
    channel = rng.choice(_CHANNELS)
    url = f"https://www.nexmark.com/{rng.choice('abc')}/{rng.choice('de')}/item.htm?query=1"
    if channel.startswith("channel"):
        url += f"&channel_id={rng.randrange(5)}"
    bidder, price = max(0, group - rng.randrange(5)), int(100 * 10 ** (rng.random() * 4))
    return "bid", (auction, bidder, price, channel, url, ms, at, rng.choice(["acc", "bcc", "x"]))


QUERIES = {
    "q0": "select auction, bidder, price, moment, extra from bid",
    "q1": "select auction, bidder, 0.908 * price as price, moment, extra from bid",
    "q2": "select auction, price from bid where auction % 7 = 0",
    "q3": """
        select p.name, p.city, p.state, a.id
        from auction as a join person as p on a.seller = p.id
        where a.category = 10 and p.state in ('OR', 'ID', 'CA')""",
    "q4": """
        select category, avg(final) as average
        from (
            select max(b.price) as final, a.category
            from auction as a join bid as b on a.id = b.auction
            where b.ms between a.ms and a.expires
            group by a.id, a.category) as q
        group by category""",
    "q5": """
        with counted as (
            select auction, b.ms - b.ms % 2000 - 2000 * hop.n as begins, count(*) as num
            from bid as b cross join (values (0), (1), (2), (3), (4)) as hop(n)
            group by auction, b.ms - b.ms % 2000 - 2000 * hop.n)
        select c.auction, c.num, c.begins
        from counted as c
        join (select begins, max(num) as most from counted group by begins) as m
            on c.begins = m.begins and c.num >= m.most""",
    "q6": """
        select seller, expires, avg(final) over (
            partition by seller order by expires, id rows between 9 preceding and current row
        ) as average
        from (
            select id, seller, expires, final
            from (
                select a.id, a.seller, a.expires, b.price as final, row_number() over (
                    partition by a.id order by b.price desc, b.ms, b.bidder) as place
                from auction as a join bid as b on a.id = b.auction
                where b.ms between a.ms and a.expires) as r
            where place = 1) as w""",
    "q7": """
        select b.auction, b.price, b.bidder, b.moment, b.extra
        from bid as b
        join (select ms - ms % 10000 as begins, max(price) as most from bid
              group by ms - ms % 10000) as m
            on b.price = m.most and b.ms between m.begins and m.begins + 9999""",
    "q8": """
        select p.id, p.name, p.begins
        from (select id, name, ms - ms % 10000 as begins from person
              group by id, name, ms - ms % 10000) as p
        join (select seller, ms - ms % 10000 as begins from auction
              group by seller, ms - ms % 10000) as a
            on p.id = a.seller and p.begins = a.begins""",
    "q9": """
        select id, item, seller, category, auction, bidder, price, bid_at
        from (
            select a.id, a.item, a.seller, a.category, b.auction, b.bidder, b.price,
                b.moment as bid_at, row_number() over (
                    partition by a.id order by b.price desc, b.moment, b.bidder) as place
            from auction as a join bid as b on a.id = b.auction
            where b.ms between a.ms and a.expires) as r
        where place <= 1""",
    "q10": """
        select auction, bidder, price, moment, extra, cast(moment as date) as day,
            hour(moment) as hours, minute(moment) as minutes
        from bid""",
    "q11": """
        select bidder, session, count(*) as bids, min(ms) as begins, max(ms) as ends
        from (
            select bidder, ms, sum(starts) over (
                partition by bidder order by ms, auction, price) as session
            from (
                select bidder, ms, auction, price, case when ms - lag(ms, 1) over (
                    partition by bidder order by ms, auction, price) <= 1000 then 0 else 1 end
                    as starts
                from bid) as s) as t
        group by bidder, session""",
    "q12": """
        select bidder, count(*) as bids, ms - ms % 10000 as begins
        from bid group by bidder, ms - ms % 10000""",
    "q13": """
        select b.auction, b.bidder, b.price, b.moment, s.word
        from bid as b join (values (0, 'zero'), (1, 'one'), (2, 'two')) as s(place, word)
            on b.auction % 5 = s.place""",
    "q14": """
        select auction, bidder, 0.908 * price as price,
            case when hour(moment) >= 8 and hour(moment) <= 18 then 'day'
                when hour(moment) <= 6 or hour(moment) >= 20 then 'night' else 'other' end as part,
            extra, length(extra) - length(replace(extra, 'c', '')) as c_count
        from bid where 0.908 * price > 1000 and 0.908 * price < 500000""",
    "q15": """
        select cast(moment as date) as day, count(*) as bids,
            count(*) filter (where price < 10000) as low,
            count(*) filter (where price >= 10000 and price < 100000) as middle,
            count(*) filter (where price >= 100000) as high,
            count(distinct bidder) as bidders,
            count(distinct bidder) filter (where price < 10000) as low_bidders,
            count(distinct auction) as auctions,
            count(distinct auction) filter (where price >= 10000) as high_auctions
        from bid group by cast(moment as date)""",
    "q16": """
        select channel, cast(moment as date) as day, max(minute(moment)) as latest,
            count(*) as bids,
            count(*) filter (where price < 10000) as low,
            count(distinct bidder) as bidders,
            count(distinct bidder) filter (where price >= 10000) as high_bidders,
            count(distinct auction) as auctions
        from bid group by channel, cast(moment as date)""",
    "q17": """
        select auction, cast(moment as date) as day, count(*) as bids,
            count(*) filter (where price < 10000) as low, min(price) as least,
            max(price) as most, avg(price) as average, sum(price) as total
        from bid group by auction, cast(moment as date)""",
    "q18": """
        select auction, bidder, price, channel, url, moment, extra
        from (
            select *, row_number() over (
                partition by bidder, auction order by ms desc, price desc) as place
            from bid) as r
        where place <= 1""",
    "q19": """
        select auction, bidder, price, ms, place
        from (
            select *, row_number() over (
                partition by auction order by price desc, ms, bidder) as place
            from bid) as r
        where place <= 10""",
    "q20": """
        select b.auction, b.bidder, b.price, b.channel, a.item, a.seller, a.category
        from bid as b join auction as a on b.auction = a.id where a.category = 10""",
    "q21": """
        select auction, bidder, price, channel, case
                when lower(channel) = 'apple' then '0' when lower(channel) = 'google' then '1'
                when lower(channel) = 'facebook' then '2' when lower(channel) = 'baidu' then '3'
                else regexp_extract(url, '(&|^)channel_id=([0-9]*)', 2) end as channel_id
        from bid
        where regexp_extract(url, '(&|^)channel_id=([0-9]*)', 2) <> ''
            or lower(channel) in ('apple', 'google', 'facebook', 'baidu')""",
    "q22": """
        select auction, bidder, price, channel, split_part(url, '/', 4) as dir1,
            split_part(url, '/', 5) as dir2, split_part(url, '/', 6) as dir3
        from bid""",
}
