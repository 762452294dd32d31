"""Determines the Spark settings under which expressions are described, and their types.

The log decides: the first definition that depends on the time zone or on ANSI mode records it
(nosync_nb/expressions/settings.py), and later definitions use the same settings. While the log has
no recorded settings, those of the Spark session apply. Without a Spark session, the settings that a
new one would have apply.
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

        Raises:
            ExpressionError: if a Spark session runs with other settings than the log's.
        """
        from nosync_nb.spark import spark_session

        recorded = self.recorded().select(depends)
        spark = self._way.present()
        if spark is not None:
            have = spark_session.sql_settings_of(spark)
            if have != self._last_settings:
                self._last_settings = have
                self._known.clear()  # types depend on the mode
            spark_session.check_setting(text, recorded, have)
            return recorded.over(have)
        settings = recorded.over(_expected_settings(self._way.conf))
        if depends.time_zone and settings.time_zone is None:
            settings = settings.over(
                spark_session.sql_settings_of(self._way.require(f"the expression {text!r}"))
            )
        return settings

    def in_utc(self) -> bool:
        """Returns True if expressions that depend on the time zone are described in UTC."""
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
        """The recorded settings of the log's definitions.

        Stages that were signed with another key are ignored.

        Cost: in proportion to the stages that were added since the last call.
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
        """Returns the types of expressions: known ones, or those that Spark gives."""
        return [self._resolve(sql, schema)[0] for sql in sqls]

    def registered(self, sql: str, schema: Schema) -> tuple[Registered, ...]:
        """The registered functions of the user that an expression calls.

        Raises:
            ExpressionError: if Spark does not reveal one of them.
        """
        return self._resolve(sql, schema)[1]

    def _resolve(self, sql: str, schema: Schema) -> tuple[str, tuple[Registered, ...]]:
        """The type of an expression and its registered functions, without Spark if possible."""
        known = self._type_without_spark(sql, schema)
        return self._ask_spark(sql, schema) if known is None else (known, ())

    def _ask_spark(self, sql: str, schema: Schema) -> tuple[str, tuple[Registered, ...]]:
        """The same from Spark; cached unless the expression calls a registered function."""
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
        """The type of an expression if it is known before Spark starts; Spark confirms it later."""
        if (sql, schema) in self._known or self._way.present() is not None:
            return None
        if self.recorded().over(_expected_settings(self._way.conf)).ansi is False:
            return None
        known = known_type(sql, schema)
        if known is not None:
            self._assumed[sql, schema] = known
        return known

    def confirm(self, tree: Definition) -> None:
        """Checks the types that were assumed for a definition's expressions with Spark.

        Raises:
            ExpressionError: if Spark refuses one, or gives it another type.
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

    def session(self, sql: str, schema: Schema) -> Any:
        """Returns the Spark session for an expression; prints a notice before one is started."""
        spark = self._way.present()
        if spark is not None:
            return self._way.require(f"the expression {sql!r}")
        wait = spark_suggestions(sql, schema)
        why = f" ({wait.why})" if wait.why else ""
        return self._way.require(f"the expression {sql!r}{why}", wait.nearest, announce=True)


def _is_in(asked: tuple[str, Schema], tree: Definition) -> bool:
    """Returns True if a definition has an expression over these columns with the same functions."""
    sql, schema = asked
    called = set(re.findall(r"\w+(?=\s*\()", sql.lower()))
    for part in tree.walk():
        if any(each.schema == schema for each in part.inputs):
            words = set(re.findall(r"\w+", " ".join(map(str, expressions_of(part))).lower()))
            if called <= words:
                return True
    return False


def _definition_settings(tree: Definition) -> SqlSettings:
    """The settings of a definition's expressions."""
    settings = SqlSettings()
    for part in tree.walk():
        settings = settings.over(retained_settings(part.params))
    return settings


def _expected_settings(conf: Mapping[str, str]) -> SqlSettings:
    """The known settings of a Spark session that would be started."""
    from nosync_nb.spark.spark_session import ANSI, TIME_ZONE

    named = conf.get(TIME_ZONE) or (UTC if set(time.tzname) == {UTC} else None)
    ansi = conf.get(ANSI) or os.environ.get("SPARK_ANSI_SQL_MODE") or "true"
    return SqlSettings(None if named is None else zone(named), ansi.lower() == "true")
