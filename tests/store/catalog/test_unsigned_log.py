"""Unsigned logs: rows are read, and nothing is executed.

The attacker writes logs with NoSync itself, under another key, and changes the catalog before it is
written.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from internals import catalog_of, checkpoint_now, services_of
from sql_cases.expression_cases import all_cases

import nosync_nb
from nosync_nb import Session, StageError
from nosync_nb.collections.definition import Definition
from nosync_nb.collections.functions import signing
from nosync_nb.dataflow.graph import Graph
from nosync_nb.dataflow.stage import Stage
from nosync_nb.expressions import disallowed_reason
from nosync_nb.operators import spec
from nosync_nb.operators.aggregates import aggregate
from nosync_nb.rows import Schema
from nosync_nb.session.state.signer import CatalogSigner
from nosync_nb.spark.connection import SparkConnection
from nosync_nb.store.records import payloads

pytestmark = pytest.mark.usefixtures("no_disk")

REFLECT = "cast(reflect('java.lang.System', 'load', '/nowhere/evil.so') as int) > 0"


class Victim:
    """Opens logs under several keys; counts the calls that a hostile log must not reach."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch = folder, patch
        self.compiled: list[str] = []
        self.sparks = 0
        self.loads = 0
        self.sessions: list[Session] = []

    def use_key(self, name: str) -> None:
        self.patch.setenv("NOSYNC_KEY_FILE", str(self.folder / name))

    def opened(self, key: str = "mine", log: str = "log", **options: Any) -> Session:
        self.use_key(key)
        self.sessions.append(nosync_nb.open(self.folder / log, **options))
        return self.sessions[-1]

    def watch(self) -> None:
        """Starts counting compiled expressions, loaded functions, and calls for Spark."""

        def require(_: Any, why: str) -> Any:
            self.sparks += 1
            raise nosync_nb.ExpressionError(f"{why} needs Spark")

        self.patch.setattr(SparkConnection, "require", require)
        one, many = spec.compile_expression, aggregate.compile_aggregates
        self.patch.setattr(spec, "compile_expression", self._counting(one))
        self.patch.setattr(aggregate, "compile_aggregates", self._counting(many))
        load = signing.closure.deserialize_function

        def loads(data: bytes) -> Any:
            self.loads += 1
            return load(data)

        self.patch.setattr(signing.closure, "deserialize_function", loads)

    def _counting(self, made: Callable[..., Any]) -> Callable[..., Any]:
        def counted(what: Any, *rest: Any, **options: Any) -> Any:
            self.compiled.append(str(what))
            return made(what, *rest, **options)

        return counted

    @property
    def untouched(self) -> bool:
        return (self.compiled, self.loads, self.sparks) == ([], 0, 0)


@pytest.fixture
def victim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Victim]:
    made = Victim(tmp_path, monkeypatch)
    yield made
    for session in reversed(made.sessions):
        session.close()


def stages(session: Session) -> dict[str, Any]:
    numbers = session.input("numbers", "x int")
    return {
        "big": numbers.filter("x > 1"),
        "odd": numbers.map(lambda row: (row.x % 2,), "y int"),
        "counts": numbers.group_by("x").agg(n="count(*)"),
    }


def filled(session: Session, epochs: int = 3) -> None:
    session.define(stages(session))
    for x in range(1, epochs + 1):
        session.inputs["numbers"].insert([(x,)])
        session.commit()


def values(collection: Any, at: Any = None) -> list[Any]:
    return [tuple(row) if len(row) > 1 else row[0] for row in collection.rows(at)]


def forge_catalogs(
    patch: pytest.MonkeyPatch, change: Callable[[dict[str, Any], Graph], None]
) -> None:
    """Changes every catalog before it is written."""
    whole = payloads.catalog_json

    def made(catalog: Mapping[str, Any], graph: Graph, *rest: Any) -> dict[str, Any]:
        data = json.loads(json.dumps(whole(catalog, graph, *rest)))
        change(data, graph)
        return data

    patch.setattr(payloads, "catalog_json", made)


def forge_reflect(data: dict[str, Any], graph: Graph) -> None:
    """Makes `big` call reflect, stopped at an epoch from which recovery would continue."""
    numbers, big = (next(s for s in data["stages"] if s["name"] == n) for n in ("numbers", "big"))
    big["definition"][-1]["params"]["predicate"] = REFLECT
    big["life"] = {"is": "stale", "reason": "its function was not restored", "since": 1}
    tree = Definition.from_json(big["definition"], [])
    stage = Stage("big", Schema(numbers["schema"]), tree)
    big["fingerprint"] = stage.current_fingerprint({"numbers": graph.named["numbers"].fingerprint})
    for node in data["nodes"]:
        if node["name"] == "big":
            node["fingerprint"] = big["fingerprint"]
            node["stopped"] = 1


@pytest.fixture
def hostile_log(victim: Victim, monkeypatch: pytest.MonkeyPatch) -> Victim:
    """A log of another key at epoch 4 whose stage `big` must catch up from epoch 1."""
    with monkeypatch.context() as patch:
        session = victim.opened("theirs")
        filled(session)
        forge_catalogs(patch, forge_reflect)
        session.stage("late", session["numbers"].distinct())
        session.inputs["numbers"].insert([(4,)])
        session.commit()
        session.close()
    victim.watch()
    return victim


# -- another key -----------------------------------------------------------------------------------


@pytest.mark.fault(43)
def test_log_of_other_key_is_read_and_written_without_running_it(
    hostile_log: Victim,
) -> None:
    for more in range(5, 8):
        session = hostile_log.opened()
        assert set(session.stale) == {"big", "odd", "counts", "late"}
        assert values(session["numbers"], 4) == [1, 2, 3, 4]
        assert values(session["counts"], 2) == [(1, 1), (2, 1)]
        assert values(session["odd"], 3) == [0, 1, 1]
        session.inputs["numbers"].insert([(more,)])
        session.commit()
        checkpoint_now(session)
        session.close()
    assert hostile_log.untouched


def test_stale_reason_names_signing_key_and_remedy(hostile_log: Victim) -> None:
    hostile_log.use_key("theirs")
    theirs = signing.key_id(signing.user_key())
    hostile_log.use_key("mine")
    signing.user_key()
    session = hostile_log.opened()
    for reason in session.stale.values():
        assert f"signed with key {theirs}" in reason
        assert "run the stage's cell" in reason
        assert "key import" in reason
    session["numbers"].insert([(5,)])
    session.commit()
    with pytest.raises(nosync_nb.TimeError, match=theirs):
        session["big"].rows()


def test_redefined_stages_of_other_key_are_computed_from_rows(hostile_log: Victim) -> None:
    """The stored rows of the stages are not trusted, although the cells are the same."""
    session = hostile_log.opened()
    session.inputs["numbers"].insert([(5,)])
    session.commit()
    session.define(stages(session))
    assert values(session["big"]) == [2, 3, 4, 5]
    assert values(session["counts"]) == [(x, 1) for x in range(1, 6)]
    assert values(session["odd"]) == [0, 0, 1, 1, 1]
    assert values(session["big"], 2) == [2]
    assert catalog_of(session)["counts"].version == 2
    assert values(session["counts@1"], 2) == [(1, 1), (2, 1)]
    assert REFLECT not in hostile_log.compiled
    assert set(session.stale) == {"late"}
    assert "not trusted" in session.info.trust().whose
    with pytest.raises(StageError, match="it reads 'late', which is stale"):
        session.stage("more", session["late"].filter("x > 1"))
    session.close()
    session = hostile_log.opened()
    assert set(session.stale) == {"late"}
    session.inputs["numbers"].insert([(6,)])
    session.commit()
    assert values(session["big"]) == [2, 3, 4, 5, 6]
    session.drop("late")
    assert session.info.trust().whose == "signed with your key"
    assert REFLECT not in hostile_log.compiled


def test_stages_of_other_key_stay_stale_in_signed_catalog(
    hostile_log: Victim,
) -> None:
    """Our signature over a catalog records their signer; it does not make them ours."""
    session = hostile_log.opened()
    session.input("other", "y int")
    session.stage("own", session["other"].distinct())
    for how in ("frames", "checkpoint"):
        if how == "checkpoint":
            checkpoint_now(session)
        session.close()
        session = hostile_log.opened()
        assert services_of(session).signer.origin.is_by_this_user
        assert set(session.stale) == {"big", "odd", "counts", "late"}
        session.rename("big", "large")
        session.inputs["other"].insert([(len(how),)])
        session.commit()
        session.rename("large", "big")
        assert values(session["own"])[-1] == len(how)
    assert hostile_log.untouched


def test_reader_of_log_of_other_key_runs_nothing(hostile_log: Victim) -> None:
    reader = hostile_log.opened(mode="r")
    assert values(reader["numbers"]) == [1, 2, 3, 4]
    assert values(reader["counts"], 3) == [(1, 1), (2, 1), (3, 1)]
    assert reader.stale == {"big": "its function was not restored"}
    assert hostile_log.untouched
    assert not (hostile_log.folder / "mine").exists()


@pytest.mark.fault(43)
def test_opening_without_key_reads_log_and_creates_no_key(victim: Victim) -> None:
    session = victim.opened()
    filled(session)
    session.close()
    victim.watch()
    session = victim.opened("gone")
    assert all("key import" in reason for reason in session.stale.values())
    assert set(session.stale) == {"big", "odd", "counts"}
    assert not (victim.folder / "gone").exists()
    assert victim.untouched
    session.close()
    session = victim.opened()
    assert session.stale == {}
    session.inputs["numbers"].insert([(9,)])
    session.commit()
    assert values(session["big"]) == [2, 3, 9]


def test_readable_key_makes_all_stages_stale(victim: Victim) -> None:
    session = victim.opened()
    filled(session)
    session.close()
    (victim.folder / "mine").chmod(0o644)
    victim.watch()
    session = victim.opened()
    assert all("has mode 0644" in reason for reason in session.stale.values())
    assert values(session["counts"], 2) == [(1, 1), (2, 1)]
    session.inputs["numbers"].insert([(7,)])
    with pytest.warns(UserWarning, match="has mode 0644"):
        session.commit()
    assert victim.untouched


# -- the extent of a signature ---------------------------------------------------------------------


def replacing(text: str, old: str, new: str) -> Any:
    """Replaces a part of a text in every catalog that is read."""

    def change(meta: dict[str, Any]) -> dict[str, Any]:
        return json.loads(json.dumps(meta).replace(text, text.replace(old, new)))  # type: ignore[no-any-return]

    return change


@pytest.fixture
def change_on_read(
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[Callable[[dict[str, Any]], Any]], None]:
    """Changes the catalogs of frames and checkpoints when they are read."""

    def install(change: Callable[[dict[str, Any]], Any]) -> None:
        whole = payloads.decode_payload

        def unpack(data: Any) -> payloads.Payload:
            payload = whole(data)
            if "catalog" not in payload.meta:
                return payload
            return payload._replace(meta=change(payload.meta))

        monkeypatch.setattr(payloads, "decode_payload", unpack)

    return install


@pytest.mark.fault(43)
@pytest.mark.parametrize("where", ["frames", "checkpoint"])
@pytest.mark.parametrize(
    "change",
    [
        replacing("x > 1", "1", "0"),
        replacing('"stopped": null', "null", "0"),
        replacing('"signed": ["', '["', '["0'),
        lambda meta: {k: v for k, v in meta.items() if k != "signed"},
        lambda meta: {**meta, "signed": [meta["signed"][0], "0" * 64]},
        lambda meta: {**meta, "signed": {"a": 1}},
        lambda meta: {**meta, "signed": None},
        lambda meta: {**meta, "signed": [None, None]},
    ],
)
def test_catalog_changed_after_signing_is_not_trusted(
    victim: Victim, where: str, change: Any, change_on_read: Any
) -> None:
    session = victim.opened()
    filled(session)
    if where == "checkpoint":
        checkpoint_now(session)
    session.close()
    victim.watch()
    change_on_read(change)
    session = victim.opened()
    assert set(session.stale) == {"big", "odd", "counts"}
    assert all("run the stage's cell" in reason for reason in session.stale.values())
    assert values(session["counts"], 2) == [(1, 1), (2, 1)]
    session.inputs["numbers"].insert([(4,)])
    session.commit()
    assert victim.untouched


@pytest.mark.fault(43)
def test_catalog_signed_for_other_log_is_not_trusted(victim: Victim, change_on_read: Any) -> None:
    """Both logs are this user's; stages of one notebook must not run on rows of the other."""
    taken: list[dict[str, Any]] = []
    session = victim.opened(log="one")
    filled(session, 2)
    session.close()
    session = victim.opened(log="two")
    session.define({"big": stages(session)["big"]})
    session.close()
    victim.watch()

    def take(meta: dict[str, Any]) -> dict[str, Any]:
        taken.append(meta)
        return meta

    def put(meta: dict[str, Any]) -> dict[str, Any]:
        return taken[-1]

    with pytest.MonkeyPatch.context() as patch:
        whole = payloads.decode_payload
        patch.setattr(
            payloads, "decode_payload", lambda data: (p := whole(data), p.meta and take(p.meta))[0]
        )
        victim.opened(log="two").close()
    assert taken
    victim.compiled.clear()
    change_on_read(put)
    session = victim.opened(log="one")
    assert set(session.stale) == {"big"}
    assert "comes from another log" in session.stale["big"]
    assert victim.untouched


@pytest.mark.fault(43)
def test_older_catalog_is_not_trusted_at_other_epoch(victim: Victim, change_on_read: Any) -> None:
    session = victim.opened()
    session.stage("big", session.input("numbers", "x int").filter("x > 1"))
    session.inputs["numbers"].insert([(1,), (2,)])
    session.commit()
    old = json.loads(json.dumps(services_of(session).publisher.catalog))
    signed = services_of(session).signer.signed(0, services_of(session).publisher.digest)
    session.stage("big", session["numbers"].filter("x > 0"))
    session.close()
    victim.watch()
    change_on_read(lambda meta: {**meta, "catalog": old, "signed": signed})
    session = victim.opened()
    assert set(session.stale) == {"big"}
    assert victim.untouched


def test_unsigned_definition_after_signed_checkpoint_is_not_trusted(
    victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signed checkpoint does not vouch for a later unsigned definition."""
    session = victim.opened()
    filled(session)
    checkpoint_now(session)
    with monkeypatch.context() as patch:
        patch.setattr(CatalogSigner, "signed", lambda *_: None)
        session.stage("late", session["numbers"].filter("x > 2"))
    session.close()
    victim.watch()
    session = victim.opened()
    assert set(session.stale) == {"big", "odd", "counts", "late"}
    assert victim.untouched


def test_own_log_continues_after_folder_and_key_are_moved(victim: Victim) -> None:
    session = victim.opened()
    filled(session)
    checkpoint_now(session)
    session.close()
    shutil.move(victim.folder / "log", victim.folder / "moved")
    shutil.move(victim.folder / "mine", victim.folder / "home")
    session = victim.opened("home", log="moved")
    assert session.stale == {}
    session.inputs["numbers"].insert([(4,)])
    session.commit()
    assert values(session["big"]) == [2, 3, 4]


# -- functions -------------------------------------------------------------------------------------


def functions(data: dict[str, Any], stage: str) -> list[Any]:
    """The functions of a stage in a catalog: identity and serialised text."""
    return next(s["functions"] for s in data["stages"] if s["name"] == stage)  # type: ignore[no-any-return]


@pytest.mark.fault(43)
@pytest.mark.parametrize("what", ["text", "both"])
@pytest.mark.parametrize("log", ["log", "two"])
def test_function_signed_for_other_stage_or_log_is_not_loaded(
    victim: Victim, monkeypatch: pytest.MonkeyPatch, what: str, log: str
) -> None:
    """The function is signed by this user for a stage of this log or of another one."""
    session = victim.opened(log=log)
    numbers = session.input("numbers", "x int")
    session.define({"other": numbers.map(lambda row: (row.x + 1,), "y int")})
    ((identity, text),) = functions(services_of(session).publisher.catalog, "other")  # type: ignore[arg-type]
    session.close()

    def swap(data: dict[str, Any], _: Graph) -> None:
        odd = functions(data, "odd")
        odd[0] = [identity if what == "both" else odd[0][0], text]

    session = victim.opened()
    described = stages(session)
    with monkeypatch.context() as patch:
        forge_catalogs(patch, swap)
        session.define(described)
    session.close()
    victim.watch()
    session = victim.opened()
    assert services_of(session).signer.origin.is_by_this_user
    assert set(session.stale) == {"odd"}
    assert "does not match its signature" in session.stale["odd"]
    assert victim.loads == (1 if log == "log" else 0)  # the function of `other` itself


def test_function_with_other_fingerprint_is_not_loaded() -> None:
    sealed = signing.sign_function(len, key=b"1" * 32)
    with pytest.raises(nosync_nb.TrustError, match="has another fingerprint than its stage"):
        signing.load_signed_function(sealed, key=b"1" * 32, fingerprint="another")


def test_functions_follow_renamed_and_sharing_stages(
    victim: Victim,
) -> None:
    session = victim.opened()
    halves = session.input("numbers", "x int").map(lambda row: (row.x // 2,), "y int")
    session.define({"small": halves.filter("y < 3"), "large": halves.filter("y >= 3")})
    session.rename("small", "little")
    session.inputs["numbers"].insert([(2,), (9,)])
    session.commit()
    for _ in range(2):
        session.close()
        session = victim.opened()
        assert session.stale == {}
        assert [values(session[name]) for name in ("little", "large")] == [[1], [4]]
        session.rename("large", "huge")
        session.rename("huge", "large")


# -- allowed calls of expressions ------------------------------------------------------------------

REFUSED = [
    "reflect('a', 'b')",
    "builtin.reflect('a')",
    "system.builtin.reflect('a')",
    "`reflect`('a')",
    "`builtin`.`reflect`('a')",
    "REFLECT ('a')",
    "Reflect\n('a')",
    "reflect\u00a0('a')",
    "reflect/**/('a')",
    "/* */ reflect/* */('a')",
    "-- \r reflect('a')\n 1",
    "{fn reflect('a')}",
    "identifier('reflect')('a')",
    "identifier('a')",
    "x + java_method('a', 'b')",
    "case when try_reflect('a') > 1 then 1 end",
    "filter(a, x -> reflect('a'))",
    "array(1)[reflect('a')]",
    "interval reflect('a') day",
    "sum(reflect('a'))",
    "count(x) filter (where reflect('a'))",
    "my_udf(x)",
    "`my``udf`(x)",
    "spark_catalog.default.f(x)",
    "a.upper(x)",
    "\"reflect\"('a')",
    "input_file_name()",
    "xpath(x, 'a')",
    "from_avro(x, 'a')",
    "from_protobuf(x, 'a', 'file')",
    "(select 1)",
    "(table mine)",
    "exists(select 1)",
    "(from mine select x)",
]
RUN = [
    "x > 1",
    "count(*)",
    "sum(x) / count(distinct y)",
    "count(x) filter (where y > 1)",
    "upper(s) || 'reflect (a)'",
    "coalesce(`a (b)`, 1)",
    "cast(x as decimal(10, 2)) in (1, 2)",
    "not (a and (b or c))",
    "from_json(s, 'a int').a",
    "transform(a, x -> x + 1)[0]",
    "-- above the mean\n x > 1",
    "extract(year from d)",
    "trim(both 'a' from s)",
    "max(struct(a, b)).a",
    "listagg(a, ',') within group (order by b)",
]


@pytest.mark.fault(43)
@pytest.mark.parametrize("sql", REFUSED)
def test_expressions_with_forbidden_calls_are_refused(sql: str) -> None:
    assert disallowed_reason(sql) is not None


@pytest.mark.parametrize("sql", RUN)
def test_expressions_with_pure_functions_are_allowed(sql: str) -> None:
    assert disallowed_reason(sql) is None


def test_all_expressions_computed_in_process_are_allowed() -> None:
    assert [case.sql for case in all_cases() if disallowed_reason(case.sql) is not None] == []


def test_reflect_in_signed_log_makes_stage_stale(
    victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the user's cell may call it, so the stage waits for the cell at every restart."""
    with monkeypatch.context() as patch:
        session = victim.opened()
        filled(session)
        forge_catalogs(patch, forge_reflect)
        session.stage("late", session["numbers"].distinct())
        session.close()
    victim.watch()
    session = victim.opened()
    assert services_of(session).signer.origin.is_by_this_user
    assert set(session.stale) == {"big"}
    assert "calls 'reflect', which is not allowed in a log: run the" in session.stale["big"]
    session.inputs["numbers"].insert([(7,)])
    session.commit()
    assert values(session["late"]) == [1, 2, 3, 7]
    assert REFLECT not in victim.compiled
    assert victim.sparks == 0
    session.stage("big", session["numbers"].filter("x > 1"))
    assert values(session["big"]) == [2, 3, 7]


@pytest.mark.parametrize("sql", ["(table mine)", "x + (table mine)", "coalesce((table mine), 1)"])
def test_column_named_table_allows_no_subquery(session: Session, sql: str) -> None:
    collection = session.input("rows", "x int, `table` int")
    with pytest.raises(nosync_nb.ExpressionError, match="subquery reads other rows"):
        collection.select(f"{sql} as y")


@pytest.mark.spark
def test_subquery_in_plan_of_spark_is_refused(spark: Any) -> None:
    from nosync_nb.spark import fallback

    spark.range(3).createOrReplaceTempView("mine")
    with pytest.raises(nosync_nb.ExpressionError, match="subquery reads other rows"):
        fallback.analysed(spark, "(select max(id) from mine)", Schema.parse("x int"))
    assert fallback.analysed(spark, "x + 1", Schema.parse("x int")) == ("int", ())
