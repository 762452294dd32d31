"""Runs the SELECT statements of tests/data/selects here, and compares them with the answers.

`python tests/support/sql_cases/select_runs.py` writes two lists: the cases that do not pass, and
those that ask for a Spark session.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import nosync_nb
from nosync_nb import Session
from nosync_nb.errors import NosyncError
from sql_cases.selects import (
    NEEDS_SPARK,
    PENDING,
    TABLES,
    Answer,
    Case,
    cases,
    epochs,
    names,
    needs_spark,
    oracle,
    ordered,
    pending,
    plain,
    recorded,
)


@contextmanager
def without_spark(*, ansi: bool) -> Iterator[list[str]]:
    """No Spark session is found and none starts; the settings are those of a Spark in UTC.

    Yields:
        the attempts to start one.
    """
    from nosync_nb.spark import launch, spark_session

    starts: list[str] = []

    def start(_conf: object) -> None:
        starts.append("start")
        raise NosyncError("[SPARK] a Spark session is needed")

    zone = os.environ.get("TZ")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spark_session, "find_session", lambda *_: None)
        patch.setattr(launch, "start_session", start)
        patch.setenv("SPARK_ANSI_SQL_MODE", str(ansi).lower())
        patch.setenv("TZ", "UTC")
        time.tzset()
        try:
            yield starts
        finally:
            os.environ.pop("TZ") if zone is None else os.environ.update(TZ=zone)
            time.tzset()


def condition(error: Exception) -> str:
    """The condition of Spark that an error names, without its subclass."""
    found = re.search(r"\[([A-Z][A-Z_]*)(\.[A-Z_]+)?\]", str(error))
    return found[1] if found else ""


def is_error_class(name: str) -> bool:
    """False for Spark's unnamed errors and for the name of an exception of Java."""
    return name.isupper() and not name.startswith("_LEGACY")


def refusal(error: BaseException) -> str:
    """Why a statement has no rows, in one line."""
    text = str(error).partition("\n")[0]
    if not isinstance(error, NosyncError):
        return f"crash: {type(error).__name__}: {text[:100]}"
    return f"refused: {re.sub(r' [(]line.*', '', text)[:110]}"


def declared(session: Session) -> None:
    for name, table in TABLES.items():
        session.input(name, table.ddl)


def filled(session: Session) -> None:
    """Declares the tables and commits their rows."""
    declared(session)
    for name, table in TABLES.items():
        if table.rows:
            session[name].insert(table.rows)
    session.commit()


def answered(collection: Any) -> list[list[Any]]:
    return ordered([plain(tuple(row)) for row in collection.rows()])


def difference(expected: Answer, collection: Any, *, typed: bool) -> str:
    """The first difference of a collection from the answer; empty without one."""
    schema = collection.schema
    columns = zip(without_numbers(schema.names), schema.types, strict=True)
    fields = ", ".join(f"{n} {t}" for n, t in columns)
    wanted = re.sub(r"\bvoid\b", "string", expected.schema)  # the type of NULL here
    if (rows := answered(collection)) != ordered(expected.rows):
        return "rows differ"
    if typed and fields != wanted:
        same = [str(t) for t in schema.types] == types_of(wanted)
        return "names of columns differ" if same else f"schema is {fields}"[:110]
    return "" if rows is not None else "no rows"


def without_numbers(names: Sequence[str]) -> list[str]:
    """The names of a SELECT: a collection numbers the second of two equal ones, `a` and `a_1`."""
    shown: list[str] = []
    for name in names:
        own, _, number = name.rpartition("_")
        count = [each.lower() for each in shown].count(own.lower())
        is_numbered = number.isdigit() and 0 < count <= int(number) and name not in shown
        shown.append(own if is_numbered else name)
    return shown


def types_of(schema: str) -> list[str]:
    """The types of columns without brackets in their names; else the empty list."""
    return [] if re.search(r"[(<]", schema) else [c.rpartition(" ")[2] for c in schema.split(", ")]


def compared(session: Session, case: Case, expected: Answer, *, typed: bool) -> str:
    """The difference of a statement from its answer, from scratch; empty without one."""
    if case.refused:
        return refused(session, case)
    try:
        collection = session.sql(case.sql)
        if not expected.error:
            return difference(expected, collection, typed=typed)
        collection.rows()
    except Exception as error:  # a crash counts as a difference
        if not expected.error or not isinstance(error, NosyncError):
            return refusal(error)
        wanted = expected.error.partition(".")[0]
        if not typed or not is_error_class(wanted) or condition(error) == wanted:
            return ""
        return f"names {condition(error) or 'no condition'}, Spark {wanted}"
    return f"has rows, Spark {expected.error}"


def refused(session: Session, case: Case) -> str:
    try:
        session.sql(case.sql)
    except NosyncError as error:
        return "" if error.hint else "refused without a hint"
    return "is not refused"


class Run:
    """The statements of a file in one mode: from scratch, over epochs, and from a reopened log."""

    def __init__(self, name: str, *, ansi: bool) -> None:
        self.cases = [case for case in cases(name) if case.ansi == ansi]
        self.answers = recorded(name)
        self.typed = not oracle(name)
        self.wrong: dict[str, str] = {}
        self.asking: list[str] = []
        with without_spark(ansi=ansi) as starts, tempfile.TemporaryDirectory() as folder:
            self._scratch(f"{folder}/scratch", starts)
            right = [c for c in self.cases if c.key not in {*self.wrong, *self.asking}]
            right = [c for c in right if not c.refused and not self.answers[c.key].error]
            if right:
                self._incremental(folder, right)

    def _scratch(self, path: str, starts: list[str]) -> None:
        with nosync_nb.open(path) as session:
            filled(session)
            for case in self.cases:
                starts.clear()
                told = compared(session, case, self.answers[case.key], typed=self.typed)
                if starts:
                    self.asking.append(case.key)
                elif told:
                    self.wrong[case.key] = told

    def _incremental(self, folder: str, some: list[Case]) -> None:
        """Runs cases as stages of one session; if it fails, each half of them apart."""
        path = tempfile.mkdtemp(dir=folder)
        stages: dict[str, Case] = {}
        try:
            with nosync_nb.open(f"{path}/log") as session:
                declared(session)
                for number, case in enumerate(some):
                    self._define(session, f"s{number}", case, stages)
                for changes in epochs():
                    for name, (inserts, removals) in changes.items():
                        session[name].insert(inserts)
                        session[name].remove(removals)
                    session.commit()
                self._check(session, stages, "after three epochs")
            with nosync_nb.open(f"{path}/log") as session:
                self._check(session, stages, "from the reopened log")
        except Exception as error:  # a crash counts as a difference
            if len(some) == 1:
                self.wrong[some[0].key] = f"in an epoch, {refusal(error)}"
                return
            for half in (some[: len(some) // 2], some[len(some) // 2 :]):
                self._incremental(folder, half)

    def _define(self, session: Session, name: str, case: Case, stages: dict[str, Case]) -> None:
        try:
            session.stage(name, session.sql(case.sql))
            stages[name] = case
        except NosyncError as error:
            self.wrong[case.key] = f"as a stage {refusal(error)}"

    def _check(self, session: Session, stages: dict[str, Case], when: str) -> None:
        for name, case in stages.items():
            if told := difference(self.answers[case.key], session[name], typed=self.typed):
                self.wrong.setdefault(case.key, f"{told} {when}")


def outcome(name: str) -> tuple[dict[str, str], list[str]]:
    """The cases of a file that differ from the answers with the reason, and those that ask for
    Spark.
    """
    differing: dict[str, str] = {}
    asking: list[str] = []
    for ansi in (True, False):
        if any(case.ansi == ansi for case in cases(name)):
            run = Run(name, ansi=ansi)
            differing |= run.wrong
            asking += run.asking
    return differing, asking


def outcome_with_spark(spark: Any, path: Path, name: str, keys: list[str]) -> dict[str, str]:
    """The cases among some that differ from the answers where there is a Spark session."""
    found, before = {}, spark.conf.get("spark.sql.ansi.enabled")
    try:
        for ansi in (True, False):
            spark.conf.set("spark.sql.ansi.enabled", str(ansi).lower())
            with nosync_nb.open(path / f"{name}-{ansi}", spark=spark) as session:
                filled(session)
                for case in cases(name):
                    if case.ansi == ansi and case.key in keys:
                        expected = recorded(name)[case.key]
                        if told := compared(session, case, expected, typed=not oracle(name)):
                            found[case.key] = told
    finally:
        spark.conf.set("spark.sql.ansi.enabled", before)
    return found


def _rewrite(path: Path, held: dict[str, Any]) -> None:
    held = {name: some for name, some in sorted(held.items()) if some}
    path.write_text(json.dumps(held, indent=0, ensure_ascii=False) + "\n")


def main(some: list[str]) -> None:
    """Writes both lists for some files: first without Spark, then what asks for it with Spark."""
    from nosync_nb.spark import launch

    differing, asking = ({}, {}) if not some else (pending(), needs_spark())
    for name in some or names():
        differing[name], asking[name] = outcome(name)
    settings = {"spark.master": "local[2]", "spark.log.level": "OFF"}
    settings |= {"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "1"}
    spark = launch.start_session(settings)
    with tempfile.TemporaryDirectory() as folder:
        for name in some or names():
            differing[name] |= outcome_with_spark(spark, Path(folder), name, asking[name])
            total = f"{len(differing[name])} of {len(cases(name))} differ"
            sys.stdout.write(f"{name}: {total}, {len(asking[name])} ask for Spark\n")
    launch.stop_session(spark)
    _rewrite(PENDING, differing)
    _rewrite(NEEDS_SPARK, asking)


if __name__ == "__main__":
    main(sys.argv[1:])
