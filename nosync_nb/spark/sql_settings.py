"""Determines the Spark settings of expressions, and the types of expressions.

The log has precedence: the first definition that depends on the time zone or on ANSI mode records
the setting (nosync_nb/expressions/settings.py), and later definitions use the same value. If the
log has no recorded setting, that of the Spark session applies. Without a Spark session, the setting
that a new session would have applies.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from nosync_nb.collections.definition import Definition
from nosync_nb.dataflow.graph import appended_items
from nosync_nb.dataflow.stage import Stage
from nosync_nb.errors import ExpressionError
from nosync_nb.expressions import (
    Registered,
    SettingsDependency,
    SqlSettings,
    known_type,
    refusal_without_spark,
    retained_settings,
    spark_suggestions,
)
from nosync_nb.expressions.settings import UTC, zone
from nosync_nb.operators.registry import expressions_of
from nosync_nb.rows import Schema
from nosync_nb.spark.session_protocol import SparkSessionProtocol


class SparkTypes:
    """Resolves types and settings of expressions before Spark evaluates them."""

    def __init__(self, way: SparkSessionProtocol) -> None:
        self._way = way
        self._known: dict[tuple[str, Schema], tuple[str, tuple[Registered, ...]]] = {}
        self._assumed: dict[tuple[str, Schema], str] = {}
        self._last_settings: SqlSettings | None = None
        self._noted: WeakKeyDictionary[Definition, SqlSettings] = WeakKeyDictionary()
        self._recorded: tuple[Mapping[str, Stage], SqlSettings] = {}, SqlSettings()  # for a catalog

    def settings(self, depends: SettingsDependency, text: str) -> SqlSettings:
        """Returns the settings of an expression: those recorded in the log, else those of Spark.

        Args:
            depends: the settings that the expression depends on.
            text: the expression, for messages.

        Raises:
            ExpressionError: if the running Spark session has other settings than the log.
        """
        from nosync_nb.spark import spark_session

        recorded = self.recorded().select(depends)
        spark = self._way.present()
        if spark is not None:
            have = spark_session.sql_settings_of(spark)
            if have != self._last_settings:
                self._last_settings = have
                self._known.clear()  # because types depend on ANSI mode
            spark_session.check_setting(text, recorded, have)
            return recorded.over(have)
        settings = recorded.over(_expected_settings(self._way.conf))
        if depends.time_zone and settings.time_zone is None:
            self._refuse(text)
            settings = settings.over(
                spark_session.sql_settings_of(self._way.require(f"the expression {text!r}"))
            )
        return settings

    def in_utc(self) -> bool:
        """Returns True if the time zone for expressions is UTC."""
        settings = self.recorded()
        if settings.time_zone is None:
            from nosync_nb.spark import spark_session

            spark = self._way.present()
            settings = (
                _expected_settings(self._way.conf)
                if spark is None
                else spark_session.sql_settings_of(spark)
            )
        return settings.time_zone == UTC

    def recorded(self) -> SqlSettings:
        """Returns the settings that the log's definitions have recorded.

        Stages that were signed with another key are ignored.

        Cost: in proportion to the stages that were added since the previous call.
        """
        catalog = self._way.catalog()
        known, settings = self._recorded
        if catalog is known:
            return settings
        stages: Mapping[str, Stage] | None = appended_items(catalog, known)
        if stages is None:
            stages, settings = catalog, SqlSettings()
        for stage in stages.values():
            if None not in settings[:2]:
                break
            if stage.definition is not None and stage.signer is None:
                noted = self._noted.get(stage.definition)
                if noted is None:
                    noted = self._noted[stage.definition] = _definition_settings(stage.definition)
                settings = settings.over(noted)
        self._recorded = catalog, settings
        return settings

    def __call__(self, sqls: Sequence[str], schema: Schema) -> list[str]:
        """Returns the types of expressions; asks Spark for those that are unknown."""
        return [self._resolve(sql, schema)[0] for sql in sqls]

    def registered(self, sql: str, schema: Schema) -> tuple[Registered, ...]:
        """Returns the registered functions of the user that an expression calls.

        Raises:
            ExpressionError: if Spark does not give access to the code of one of them.
        """
        return self._resolve(sql, schema)[1]

    def _resolve(self, sql: str, schema: Schema) -> tuple[str, tuple[Registered, ...]]:
        """Returns the type of an expression and the registered functions that it calls.

        Asks Spark only if the type is unknown, or if Spark is running.
        """
        known = self._type_without_spark(sql, schema)
        return self._ask_spark(sql, schema) if known is None else (known, ())

    def _ask_spark(self, sql: str, schema: Schema) -> tuple[str, tuple[Registered, ...]]:
        """Asks Spark for the type of an expression and the registered functions that it calls.

        The answer is cached unless there are such functions.
        """
        answer = self._known.get((sql, schema))
        if answer is None:
            spark = self.session(sql, schema)
            from nosync_nb.spark import fallback, launch

            with launch.guarded_use(spark, f"the expression {sql!r}"):
                answer = fallback.analysed(spark, sql, schema)
            if not answer[1]:
                self._known[sql, schema] = answer
        return answer

    def _type_without_spark(self, sql: str, schema: Schema) -> str | None:
        """Returns the type of an expression that is known before Spark starts; else None.

        `confirm` checks the type later with Spark.
        """
        if (sql, schema) in self._known or self._way.present() is not None:
            return None
        if self.recorded().over(_expected_settings(self._way.conf)).ansi is False:
            return None
        known = known_type(sql, schema)
        if known is not None:
            self._refuse(sql)
            self._assumed[sql, schema] = known
        return known

    def confirm(self, tree: Definition) -> None:
        """Checks with Spark the types that were assumed for the expressions of a definition.

        Raises:
            ExpressionError: if Spark rejects an expression, or it has another type there.
        """
        for sql, schema in [each for each in self._assumed if _is_in(each, tree)]:
            type_, registered = self._ask_spark(sql, schema)
            known = self._assumed.pop((sql, schema))
            if type_ != known or registered:
                raise ExpressionError(
                    f"expression {sql!r}: the Spark session has replaced a function of this"
                    " name by its own",
                    hint="define it again, to use the function of the Spark session",
                )

    def _refuse(self, sql: str) -> None:
        """Raises ExpressionError for an expression that a new Spark session is known to refuse.

        Functions are registered with a running session. So Spark need not start for the error.
        """
        if not any(key in self._way.conf for key in _ACCEPTS_MORE):
            error = refusal_without_spark(sql)
            if error is not None:
                raise error

    def session(self, sql: str, schema: Schema) -> Any:
        """Returns the Spark session for an expression; prints a notice before one is started."""
        spark = self._way.present()
        if spark is not None:
            return self._way.require(f"the expression {sql!r}")
        self._refuse(sql)
        wait = spark_suggestions(sql, schema)
        why = f" ({wait.why})" if wait.why else ""
        return self._way.require(f"the expression {sql!r}{why}", wait.nearest, announce=True)


_ACCEPTS_MORE = (
    *("spark.sql.extensions", "spark.sql.catalogImplementation"),
    "spark.sql.legacy.timeParserPolicy",
)
"""Settings with which a new Spark session may have other functions, or read other patterns."""


def _is_in(asked: tuple[str, Schema], tree: Definition) -> bool:
    """Returns True if a definition may contain an expression over these columns.

    That is so if some part reads the columns and calls all functions of the expression.
    """
    sql, schema = asked
    called = set(re.findall(r"\w+(?=\s*\()", sql.lower()))
    for part in tree.walk():
        if any(each.schema == schema for each in part.inputs):
            words = set(re.findall(r"\w+", " ".join(map(str, expressions_of(part))).lower()))
            if called <= words:
                return True
    return False


def _definition_settings(tree: Definition) -> SqlSettings:
    """Returns the settings that the expressions of a definition have recorded."""
    settings = SqlSettings()
    for part in tree.walk():
        settings = settings.over(retained_settings(part.params))
    return settings


def _expected_settings(conf: Mapping[str, str]) -> SqlSettings:
    """Returns the settings that a new Spark session would have; None where they are unknown."""
    from nosync_nb.spark.spark_session import ANSI, TIME_ZONE

    named = conf.get(TIME_ZONE) or (UTC if set(time.tzname) == {UTC} else None)
    ansi = conf.get(ANSI) or os.environ.get("SPARK_ANSI_SQL_MODE") or "true"
    return SqlSettings(None if named is None else zone(named), ansi.lower() == "true")
