"""Time zone and ANSI mode: recorded with what depends on them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from internals import give_spark, graph_of, services_of

import nosync_nb
from nosync_nb import ExpressionError, Session
from nosync_nb.expressions import SqlSettings, compile_expression, retained_settings
from nosync_nb.expressions.settings import zone
from nosync_nb.rows import Schema

SCHEMA = Schema.parse(
    "i int, l bigint, d double, f float, s string, u string, b boolean, day date, t timestamp,"
    " n timestamp_ntz, p decimal(10,2), a array<timestamp>, bi binary"
)
BERLIN = "Europe/Berlin"
NEITHER = """
i > l;i > 1.5;s = u;upper(s);t = t;n > n;i is null;l in (1, 2);d * 2 + 1;substring(s, 1, 2)
coalesce(i, l, 0);case when b then i else 3 end;if(b, s, 'x');s like 'a%';day > date_add(day, i)
b and not b;least(i, l);hour(n);trunc(day, 'month');concat(s, u);s || u;greatest(d, i)
i between 1 and 3
""".replace("\n", ";")
ZONE = """
hour(t);cast(t as date);date_trunc('day', t);t > '2020-01-01';year(t);t > n;day = t
cast(day as timestamp);date_format(t, 'HH');to_timestamp(s);from_unixtime(l);current_date()
cast(t as string);cast(s as timestamp);to_csv(struct(i));localtimestamp;unix_timestamp(s)
cast(a as string);to_json(a);make_timestamp(1, 2, 3, 4, 5, 6);t + interval 1 day
from_json(s, 'x timestamp')
""".replace("\n", ";")
MODE = """
i + 1;i - l;i * i;i / l;i % 2;-i;abs(i);cast(s as int);cast(d as int);int(s);i = '1';i in ('1', '2')
coalesce(s, i);f > i;f = l;case when b then s else i end;cast(l as int);s || i;d > '1'
floor(d);s > 5;to_date(s);array(i)[1];p + 1;p / p;cast(s as decimal(3,1));mask(s)
nullif(s, i);cast(i as boolean);if(b, i, s);a[0];size(a)
""".replace("\n", ";")


def split_expressions(given: str) -> list[str]:
    return [text for text in given.split(";") if text]


def compile_here(sql: str, **given: Any) -> Any:
    return compile_expression(sql, SCHEMA, types=lambda *_: ["string"], **given)


@pytest.mark.parametrize("sql", split_expressions(NEITHER))
def test_expression_without_settings_means_the_same_under_all(sql: str) -> None:
    def refuse(*_: Any) -> SqlSettings:
        raise AssertionError("settings are not needed")

    found = compile_here(sql, settings=refuse)
    assert found.settings == SqlSettings()
    assert found.local


@pytest.mark.parametrize("sql", split_expressions(ZONE))
def test_expression_that_depends_on_the_time_zone_records_it(sql: str) -> None:
    assert compile_here(sql, settings=SqlSettings(BERLIN, True)).settings.time_zone == BERLIN
    assert not compile_here(sql, settings=SqlSettings(BERLIN, True)).local


@pytest.mark.parametrize("sql", split_expressions(MODE))
def test_expression_that_depends_on_ansi_mode_records_it(sql: str) -> None:
    found = compile_here(sql, settings=SqlSettings("UTC", False))
    assert found.settings == SqlSettings(None, False)
    assert found.raises is not found.local
    assert compile_here(sql, settings=SqlSettings("UTC", True)).settings == SqlSettings(None, True)


def test_pickled_expression_keeps_its_settings() -> None:
    found = compile_here("hour(t) + i", settings=SqlSettings(BERLIN, False))
    assert pickle.loads(pickle.dumps(found)).settings == SqlSettings(BERLIN, False)
    here = compile_here("hour(t) + i", settings=SqlSettings("UTC", True))
    assert pickle.loads(pickle.dumps(here)).local


@pytest.mark.parametrize("name", ["utc", "Etc/UTC", "GMT", "Z", "+00:00", "Zulu", "Etc/GMT-0"])
def test_all_names_of_utc_are_equal(name: str) -> None:
    assert zone(name) == "UTC"
    assert zone("Africa/Abidjan") == "Africa/Abidjan"


class Conf:
    def __init__(self, **given: str) -> None:
        self.given = {"timeZone": "UTC", "enabled": "true", **given}

    def get(self, key: str) -> str:
        return self.given[key.rpartition(".")[2]]


class SparkSession:
    """The attributes of a classic session that are read before Spark runs anything."""

    def __init__(self, **given: str) -> None:
        self.conf = Conf(**given)
        self.sparkContext = self
        self._jsc = self
        self._jvm = None

    def sc(self) -> Any:
        return self

    def isStopped(self) -> bool:  # noqa: N802
        return False


SparkSession.__module__ = "pyspark.sql.session"


@contextmanager
def open_with(path: Path, spark: Any = None, **conf: str) -> Iterator[Session]:
    with nosync_nb.open(path, spark=None) as session:
        session.spark_conf.update(
            {f"spark.sql.{'ansi.' * (k == 'enabled') or 'session.'}{k}": v for k, v in conf.items()}
        )
        give_spark(session, spark)
        yield session


def define_stages(session: Session) -> None:
    session.define(
        {
            "hours": session.input("log", "t timestamp, s string, i int").select("hour(t) AS h"),
            "numbers": session["log"].select("cast(s as int) AS n"),
            "plain": session["log"].filter("i > 1 and s = s"),
        }
    )


def fingerprints(session: Session) -> dict[str, str]:
    return {n: node.fingerprint for n, node in graph_of(session).named.items()}


def test_restart_uses_the_zone_and_mode_of_the_log(tmp_path: Path) -> None:
    row = (datetime(2024, 1, 1, 23, 30, tzinfo=UTC), "7", 5)
    with open_with(tmp_path / "log") as session:
        define_stages(session)
        session["log"].insert([row])  # type: ignore[attr-defined]
        session.commit()
        before = fingerprints(session)
    with open_with(tmp_path / "log", timeZone=BERLIN, enabled="false") as session:
        define_stages(session)
        assert fingerprints(session) == before
        session["log"].remove([row])  # type: ignore[attr-defined]
        session.commit()
        assert [len(session[n]) for n in ("hours", "numbers", "plain")] == [0, 0, 0]
        assert session["hours"].rows(at=1) == [(23,)]


@pytest.mark.fault(38)
def test_spark_session_of_another_zone_or_mode_is_refused(tmp_path: Path) -> None:
    with open_with(tmp_path / "log") as session:
        define_stages(session)
    other = SparkSession(timeZone=BERLIN, enabled="false")
    with open_with(tmp_path / "log", other) as session:
        log = session["log"]
        with pytest.raises(
            ExpressionError, match=f"zone is 'UTC' in this log, and '{BERLIN}'"
        ) as e:
            log.filter("hour(t) > 3")
        assert "spark.conf.set" in str(e.value.hint)
        assert "'UTC'" in str(e.value.hint)
        with pytest.raises(ExpressionError, match="ANSI mode is on in this log, and off in") as e:
            log.group_by("s").agg(n="sum(i + 1)")
        assert "'spark.sql.ansi.enabled', 'true'" in str(e.value.hint)
        log.filter("i > 1 and s = s")
        log.insert([(datetime(2024, 1, 1, 23, tzinfo=UTC), "8", 1)])  # type: ignore[attr-defined]
        session.commit()
        assert session["hours"].rows() == [(23,)]  # defined stages continue


def test_spark_session_with_another_name_of_utc_is_accepted(tmp_path: Path) -> None:
    with open_with(tmp_path / "log") as session:
        define_stages(session)
    with open_with(tmp_path / "log", SparkSession(timeZone="Etc/UTC")) as session:
        before = fingerprints(session)
        session.define({"hours": session["log"].select("hour(t) AS h")})
        assert fingerprints(session) == before


def test_settings_are_recorded_only_by_dependent_stages(tmp_path: Path) -> None:
    found = []
    for mode in ("true", "false"):
        with open_with(tmp_path / mode, SparkSession(timeZone=BERLIN, enabled=mode)) as session:
            log = session.input("log", "t timestamp, s string, i int")
            stages = {
                "a": log.filter("i > 1 and upper(s) = s").select("t", "i"),
                "b": log.group_by("s").agg(n="count(*)", last="max(t)"),
                "c": log.group_by("s").top(2, by="upper(s), i desc"),
                "d": log.join(log.rename({"i": "j", "t": "v"}), on={"lower(s)": "s"}),
            }
            session.define(stages)
            assert services_of(session).spark_connection.types.recorded() == SqlSettings()
            found.append(fingerprints(session))
    assert found[0] == found[1]


def test_zone_can_change_after_all_dependent_stages_are_dropped(tmp_path: Path) -> None:
    with open_with(tmp_path / "log") as session:
        define_stages(session)
        assert services_of(session).spark_connection.types.recorded() == SqlSettings("UTC", True)
        session.drop("hours", "numbers")
        assert services_of(session).spark_connection.types.recorded() == SqlSettings()


def test_explain_names_the_zone_and_not_the_default_mode(session: Session) -> None:
    log = session.input("log", "t timestamp, i int")
    assert "time_zone='UTC'" in log.filter("hour(t) > 1").explain()
    assert "ansi" not in log.filter("i + 1 > 1").explain()
    assert "settings" not in log.filter("i + 1 > 1").explain()


@contextmanager
def set_to(spark: Any, zone_name: str = "UTC", ansi: str = "true") -> Iterator[None]:
    keys = ("spark.sql.session.timeZone", "spark.sql.ansi.enabled")
    before = [spark.conf.get(key) for key in keys]
    for key, value in zip(keys, (zone_name, ansi), strict=True):
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, value in zip(keys, before, strict=True):
            spark.conf.set(key, value)


@pytest.mark.spark
def test_commit_in_another_zone_is_refused_and_loses_nothing(spark: Any, tmp_path: Path) -> None:
    row = (datetime(2024, 1, 1, 23, 30, tzinfo=UTC),)
    with nosync_nb.open(tmp_path / "log", spark=spark) as session:
        with set_to(spark, BERLIN):
            times = session.input("times", "t timestamp")
            hours = session.stage("hours", times.select("hour(t) AS h"))
            times.insert([row])
            session.commit()
            assert hours.rows() == [(0,)]
        times.remove([row])
        with pytest.raises(ExpressionError, match=f"is '{BERLIN}' in this log, and 'UTC' in"):
            session.commit()
        assert hours.rows(at=1) == [(0,)]
        with set_to(spark, BERLIN):
            session.commit()
            assert hours.rows() == []
    with nosync_nb.open(tmp_path / "log", spark=spark) as session:
        session["times"].insert([(None,)])  # type: ignore[attr-defined]
        with pytest.raises(ExpressionError, match=BERLIN):
            session.commit()
        assert session["hours"].rows(at=2) == []


@pytest.mark.spark
@pytest.mark.parametrize("count", [3, 70_000])
def test_program_without_ansi_mode_keeps_its_meaning(
    spark: Any, tmp_path: Path, count: int
) -> None:
    with set_to(spark, ansi="false"):
        session = nosync_nb.open(tmp_path / "log", spark=spark, spark_rows=50_000)
        source = session.input("given", "s string, i int")
        source.insert([("x", 2**31 - 1)] * count)
        session.commit()
        computed = source.select("cast(s as int) AS n", "i + 1 AS more", "i / 0 AS none").distinct()
        assert session.stage("made", computed).rows() == [(None, -(2**31), None)]
        source.insert([("7", 1)])
        session.commit()
        assert set(session["made"].rows()) == {(None, -(2**31), None), (7, 2, None)}
        session.close()
    with nosync_nb.open(tmp_path / "log", spark=spark) as session:
        session["given"].insert([("9", 2), ("y", 2**31 - 1)])  # type: ignore[attr-defined]
        session.commit()  # computed in this process, without ANSI mode, as in the log
        assert set(session["made"].rows()) == {(None, -(2**31), None), (7, 2, None), (9, 3, None)}


@pytest.mark.parametrize(
    "found", [None, "UTC", ["UTC"], ["UTC", 1, 2], [{}, True], ["UTC", "yes"], {"a": 1}, [1, None]]
)
def test_invalid_recorded_settings_are_ignored(found: Any) -> None:
    assert retained_settings({"settings": found}) == SqlSettings()


def test_settings_signed_with_another_key_are_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_with(tmp_path / "log") as session:
        define_stages(session)
        publisher, types = (
            services_of(session).publisher,
            services_of(session).spark_connection.types,
        )
        foreign = {n: replace(s, signer="another") for n, s in publisher.described.items()}
        with monkeypatch.context() as patch:
            patch.setattr(publisher, "described", foreign)
            assert types.recorded() == SqlSettings()
        assert types.recorded() == SqlSettings("UTC", True)
