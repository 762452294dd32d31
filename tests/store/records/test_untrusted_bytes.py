"""Decoding of crafted bytes: the right result or an error, in bounded time and memory.

One target for each decoder. The seeds are a small real log. Changed content gets a valid checksum
again, as an attacker would compute it. `make soak` tries many more cases.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from checks.checking import EDGES, closure
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from internals import catalog_of, checkpoint_now, decode_section, directory_of, frame_of

import nosync_nb
from nosync.log.notebook_memo import NotebookMemo
from nosync_nb import CorruptLogError, ExpressionError, TrustError, rows
from nosync_nb.collections.definition import OPERATORS_MAX
from nosync_nb.dataflow.graph import Graph
from nosync_nb.expressions import compile_expression, disallowed_reason
from nosync_nb.files.filesystem import Files
from nosync_nb.operators.iterate.loop import LoopCostEstimate
from nosync_nb.rows import Schema
from nosync_nb.store import retention_policy, store
from nosync_nb.store.catalog.validation import check_catalog
from nosync_nb.store.log import Log, batch_codec, checkpoint
from nosync_nb.store.records import payloads
from nosync_nb.store.records.file_references import named_files
from nosync_nb.trace.batch import Layout
from nosync_nb.trace.history import pack_file
from nosync_nb.trace.parts.part_file import open_part, refs_from_json

pytestmark = pytest.mark.usefixtures("no_disk")

PEAK_BYTES = 96 << 20
SLICE = settings(suppress_health_check=list(HealthCheck))

EVIL = st.sampled_from(
    ["null", "true", "-1", "0", "1", "2147483648", "9223372036854775808", "1e308", "1.5", '""',
     '"x"', '"../../x"', '"/etc/passwd"', '"print"', '"a@1"', '"<script>"', '"\\u001b]0;x"',
     '"\\udc80"', f'"{"x" * 10_000}"', "[]", "{}", "[[]]", "[0]", '{"a": 1}', '{"name": []}',
     '["int"]', f'["{"struct<" * 300}"]', f'"{"array<" * 200}int"', "NaN", "9" * 80,
     "[" * 600 + "]" * 600]
).map(json.loads)  # fmt: skip


class Corpus(NamedTuple):
    """A small log, and its records."""

    folder: Path
    payloads: list[bytes]
    checkpoint: checkpoint.Checkpoint
    checkpoint_name: str

    def __repr__(self) -> str:
        return "the corpus"


def entries_of(decoded: Iterable[payloads.Payload]) -> list[payloads.PayloadEntry]:
    return [entry for each in payloads.entries_by_log(decoded).values() for _, entry in each]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, no_disk: None) -> Corpus:
    folder = tmp_path_factory.mktemp("corpus")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NOSYNC_KEY_FILE", str(folder / "key"))
        patch.setattr(store, "SPILL_ROWS", 8)
        log = folder / "log"
        with nosync_nb.open(log) as session:
            numbers = session.input("numbers", "x int, s string, d decimal(10,2)")
            keyed = session.input("keyed", "id int, a array<int>", key="id")
            session.stage("odd", numbers.map(lambda row: (row.x % 2,), "y int"))
            session.stage("sums", numbers.group_by("x").agg(n="count(*)", most="max(s)"))
            session.stage("twice", numbers.join(keyed, on={"x": "id"}).select("x", "s"))
            edges = session.input("edges", EDGES)
            session.stage("paths", closure(edges))
            edges.insert([(0, 1), (1, 2)])
            for x in range(4):
                numbers.insert([(x, "é" * x, None)] * 3)
                keyed.upsert([(x, [x])])
                session.commit(label=f"label {x}")
            numbers.insert([(x, None, 1) for x in range(20)])
            session.commit()
            checkpoint_now(session)
            session.stage("sums", session["numbers"].group_by("s").agg(n="count(*)"))
            numbers.remove([(0, "", None)])
            edges.insert([(2, 3)])
            patch.setattr(LoopCostEstimate, "budget", lambda *_: -1)
            patch.setattr(LoopCostEstimate, "keeps", lambda *_, **__: False)
            session.commit()  # the loop drops its state, and clears its traces
        with Log.open(log, mode="r") as opened:
            encoded = [bytes(frame.payload) for frame in opened.frames()]
        (name,) = checkpoint.checkpoint_names(os.listdir(log))[:1]
        found = checkpoint.read_checkpoint(Files(), str(log), name)
        assert not isinstance(found, str)
    kinds = {entry.kind for entry in entries_of(map(payloads.decode_payload, encoded))}
    assert payloads.CLEAR in kinds, "every kind of small entry is a seed"
    return Corpus(log, [found.payload, *encoded], found, name)


@contextmanager
def bounded() -> Iterator[None]:
    """Allows only the errors of a log, and asserts bounded memory, including that of Arrow."""
    tracemalloc.start()
    usual = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(counted)
    try:
        yield
    except (CorruptLogError, TrustError):
        pass
    finally:
        pa.set_memory_pool(usual)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < PEAK_BYTES
    assert (counted.max_memory() or 0) < PEAK_BYTES


def mangled(data: st.DataObject, given: bytes) -> bytes:
    """Changes, removes, inserts or doubles some bytes."""
    out = bytearray(given)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(0, len(out) - 1)))
        match data.draw(st.sampled_from(["flip", "cut", "insert", "double", "number"])):
            case "flip":
                if out:
                    out[at] ^= 1 << data.draw(st.integers(0, 7))
            case "cut":
                del out[at : at + data.draw(st.integers(1, 40))]
            case "insert":
                out[at:at] = data.draw(st.binary(min_size=1, max_size=8))
            case "double":
                out[at:at] = out[at : at + data.draw(st.integers(1, 40))]
            case "number":
                size = data.draw(st.sampled_from([1, 2, 4, 8]))
                out[at : at + size] = data.draw(st.sampled_from([b"\xff", b"\0", b"\x7f"])) * size
    return bytes(out)


def crafted(data: st.DataObject, given: Any) -> Any:
    """JSON with values removed, doubled or replaced by unexpected ones."""
    made = copy.deepcopy(given)
    for _ in range(data.draw(st.integers(1, 3))):
        spot, above, key = made, None, None
        for _ in range(data.draw(st.integers(1, 9))):
            if not isinstance(spot, dict | list) or not spot:
                break
            keys = sorted(spot) if isinstance(spot, dict) else range(len(spot))
            above, key = spot, data.draw(st.sampled_from(list(keys)))
            spot = spot[key]
        if above is None:
            continue
        match data.draw(st.sampled_from(["evil", "evil", "drop", "double"])):
            case "evil":
                above[key] = data.draw(EVIL)
            case "drop":
                del above[key]
            case "double" if isinstance(above, list):
                above.append(above[key])
    return made


def meta_of(payload: bytes) -> dict[str, Any]:
    return payloads.decode_payload(payload).meta


def with_meta(payload: bytes, meta: Any) -> bytes:
    """A payload with another header."""
    found = payloads.decode_payload(payload)
    return payloads.encode_payload(found.epoch, found.utc, meta, found.entries)


def read_everything(folder: Path, mode: Any) -> None:
    """Opens a log and reads everything."""
    with nosync_nb.open(folder, mode=mode) as session:
        str(session.recovery)
        for name in list(catalog_of(session)):
            for at in (None, 0, 1, session.now):
                with suppress(nosync_nb.TimeError, nosync_nb.NegativeMultiplicityError):
                    session[name].to_arrow(at=at)
        [*session.epochs()]


@pytest.fixture
def copied(corpus: Corpus, tmp_path: Path) -> Callable[[], Path]:
    """Creates copies of the log, each in place of the previous one."""

    def make() -> Path:
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        return Path(shutil.copytree(corpus.folder, tmp_path / "copy"))

    return make


# -- payloads --------------------------------------------------------------------------------------


@SLICE
@given(data=st.data())
def test_crafted_frame_is_read_or_refused(corpus: Corpus, data: st.DataObject) -> None:
    payload = data.draw(st.sampled_from(corpus.payloads))
    with bounded():
        found = payloads.decode_payload(mangled(data, payload))
        list(named_files({}, payloads.entries_by_log([found])))


TYPES = st.sampled_from(
    [("int",), ("int", "string", "decimal(10,2)"), ("int", "array<int>"), ("double", "boolean")]
)


@SLICE
@given(data=st.data(), types=TYPES)
def test_crafted_batch_is_read_or_refused(
    corpus: Corpus, data: st.DataObject, types: tuple[str, ...]
) -> None:
    entries = entries_of(map(payloads.decode_payload, corpus.payloads))
    batches = [bytes(e.data) for e in entries if e.kind == payloads.INLINE and e.number]
    with bounded():
        batch_codec.decode_batch(mangled(data, data.draw(st.sampled_from(batches))), types)


@SLICE
@given(data=st.data())
def test_crafted_catalog_is_read_or_refused(corpus: Corpus, data: st.DataObject) -> None:
    metas = [meta_of(p) for p in corpus.payloads]
    catalog = data.draw(st.sampled_from([m["catalog"] for m in metas if "catalog" in m]))
    made = crafted(data, catalog)
    with bounded():
        check_catalog(made, 6)
        payloads.catalog_from_json(made, b"", None)
        Graph(payloads.restored_nodes(payloads.foreign_json(made, "")), made["numbers"])


@SLICE
@given(data=st.data())
def test_crafted_checkpoint_is_read_or_refused(
    corpus: Corpus, copied: Callable[[], Path], data: st.DataObject
) -> None:
    payload = corpus.checkpoint.payload
    if data.draw(st.booleans()):
        made = mangled(data, payload)
    else:
        made = with_meta(payload, crafted(data, meta_of(payload)))
    folder = copied()
    file = folder / corpus.checkpoint_name
    file.unlink()
    checkpoint.write_checkpoint(Files(), str(folder), corpus.checkpoint._replace(payload=made))
    with bounded():
        read_everything(folder, "r")


def assert_refused(corpus: Corpus, folder: Path, meta: Any, message: str | None = None) -> None:
    """Replaces the header of the checkpoint, and asserts that reading reports damage."""
    payload = with_meta(corpus.checkpoint.payload, meta)
    (folder / corpus.checkpoint_name).unlink()
    checkpoint.write_checkpoint(Files(), str(folder), corpus.checkpoint._replace(payload=payload))
    with pytest.raises(CorruptLogError, match=message):
        read_everything(folder, "r")


@pytest.mark.parametrize(
    ("place", "values"),
    [("packed", ["1", 1.5, True, [1]]), (2, [None, -1])]  # any text is a valid digest
    + [(place, [None, "1", -1]) for place in (1, 3, 4, 5, 6, 7)],
)
def test_history_with_invalid_epochs_is_refused(
    corpus: Corpus, copied: Callable[[], Path], place: Any, values: list[object]
) -> None:
    for value in values:
        meta = meta_of(corpus.checkpoint.payload)
        history = meta["history"]
        (history if place == "packed" else history["tree"][0])[place] = value
        assert_refused(corpus, copied(), meta)


@pytest.mark.parametrize(
    "value",
    [
        7,
        {"epochs": "7"},
        {"epochs": -1},
        {"seconds": 2**70},
        {"keeps": 7},
        {"pins": ["a"]},
        {"pins": {"a": 10**9}},
        {"pins": {"a": None}},
        {"pins": {"a": True}},
    ],
)
def test_invalid_retention_is_refused(corpus: Corpus, value: object) -> None:
    catalog = meta_of(corpus.checkpoint.payload)["catalog"]
    check_catalog(catalog, 4)
    check_catalog({**catalog, "retention": {"epochs": 7, "pins": {"a": 4}}}, 4)
    with pytest.raises(CorruptLogError, match="its retention"):
        check_catalog({**catalog, "retention": value}, 4)


@pytest.mark.parametrize(
    "value",
    [7, None, [], {"files": 0}, {"files": "7"}, {"files": True}, {"writes": 2**5000}, {"later": 7}],
)
def test_invalid_limits_of_older_releases_are_ignored(corpus: Corpus, value: object) -> None:
    catalog = {**meta_of(corpus.checkpoint.payload)["catalog"], "bounds": value}
    check_catalog(catalog, 4)
    assert retention_policy.retention_of(catalog) == retention_policy.Retention()
    assert retention_policy.removed_limits(catalog) is None


def test_layer_without_epochs_is_refused(corpus: Corpus, copied: Callable[[], Path]) -> None:
    meta = meta_of(corpus.checkpoint.payload)
    _, _, layers = next(each for each in meta["layers"].values() if each[2])
    layers[0][0] = layers[0][1]
    assert_refused(corpus, copied(), meta, "has a layer of epochs")


@SLICE
@given(data=st.data())
def test_crafted_unsigned_definition_is_read_or_refused(
    corpus: Corpus, copied: Callable[[], Path], data: st.DataObject
) -> None:
    """Opened as the owner: a crafted definition is unsigned, so it is not compiled."""
    made = crafted(data, meta_of(corpus.checkpoint.payload)["catalog"])
    folder = copied()
    whole = payloads.decode_payload
    with pytest.MonkeyPatch.context() as patch:

        def unpack(given: Any) -> payloads.Payload:
            found = whole(given)
            return found._replace(meta={**found.meta, "catalog": made}) if found.meta else found

        patch.setenv("NOSYNC_KEY_FILE", str(folder.parent / "key"))
        patch.setattr(payloads, "decode_payload", unpack)
        with bounded():
            read_everything(folder, "w")


@SLICE
@given(data=st.data())
def test_crafted_clear_entry_is_read_or_refused(
    corpus: Corpus, copied: Callable[[], Path], data: st.DataObject
) -> None:
    """The rows of collections are complete, or the log reports an error."""
    number = data.draw(st.one_of(st.integers(0, 60), st.integers(0, 2**32 - 1)))
    content = data.draw(st.sampled_from([b"", b"", b"", b"[]", b"\0"]))
    cleared = payloads.PayloadEntry(number, payloads.CLEAR, content)
    folder = copied()
    with Log.open(folder, files=Files(), background=False) as log:
        last = payloads.decode_payload(list(log.frames())[-1].payload)
        epoch = last.epoch + 1
        entries = [cleared]
        if data.draw(st.booleans()):
            inner = payloads.encode_payload(epoch, last.utc, {}, [cleared])
            entries = [payloads.missed_epoch_entry(inner)]
        log.append(payloads.EPOCH, payloads.encode_payload(epoch, last.utc, {}, entries))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NOSYNC_KEY_FILE", str(folder.parent / "key"))
        mode = data.draw(st.sampled_from(["r", "w"]))
        with bounded(), nosync_nb.open(folder, mode=mode) as session:
            assert session.now == epoch
            for name in (s.name for s in catalog_of(session).values() if not s.frozen):
                assert session[name].rows() == session[name].rows(at=epoch - 1), name


# -- files -----------------------------------------------------------------------------------------


def files_of(corpus: Corpus, folder: str, ending: str) -> list[str]:
    found = sorted(n for n in os.listdir(corpus.folder / folder) if n.endswith(ending))
    assert found
    return found


@SLICE
@given(data=st.data())
def test_crafted_part_is_read_or_refused(
    corpus: Corpus, tmp_path: Path, data: st.DataObject
) -> None:
    layers = meta_of(corpus.checkpoint.payload)["layers"].values()
    parts = [(shape, r) for _, shape, listed in layers for *_, refs in listed for r in refs or ()]
    shape, listed = data.draw(st.sampled_from(parts))
    (ref,) = refs_from_json([listed])
    content = mangled(data, (corpus.folder / "layers" / ref.path).read_bytes())
    (tmp_path / ref.path).write_bytes(content)
    with bounded():
        sized = ref._replace(size_bytes=len(content))
        part = open_part(str(tmp_path), sized, Layout.from_json(shape), checked=True)
        for column, type_ in zip(part.columns, part.layout.types, strict=True):
            rows.to_pylist(column, type_)


@SLICE
@given(data=st.data())
def test_crafted_pack_is_read_or_refused(
    corpus: Corpus, copied: Callable[[], Path], data: st.DataObject
) -> None:
    folder = copied()
    name = data.draw(st.sampled_from(files_of(corpus, "history", ".pack")))
    file = folder / "history" / name
    file.write_bytes(mangled(data, file.read_bytes()))
    with bounded():
        read_everything(folder, "r")


class EqualToAll(int):
    """A checksum that equals everything."""

    def __ne__(self, _: object) -> bool:
        return False

    __hash__ = int.__hash__


@SLICE
@given(data=st.data())
def test_crafted_section_with_valid_checksum_is_read_or_refused(
    corpus: Corpus, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(files_of(corpus, "history", ".pack")))
    folder = str(corpus.folder / "history")
    content = (corpus.folder / "history" / name).read_bytes()
    opened = pack_file.Pack(folder, name, len(content), EqualToAll())  # type: ignore[arg-type]
    number, offset, size, _, head = data.draw(st.sampled_from(directory_of(opened)))
    section = mangled(data, content[offset : offset + size])
    with bounded():
        entry = [number, offset, len(section), 0, head]
        decode_section(opened, content[:offset] + section, entry, EqualToAll())


# -- the notebook and expressions ------------------------------------------------------------------


@SLICE
@given(data=st.data())
def test_crafted_memo_is_read_or_ignored(tmp_path: Path, data: st.DataObject) -> None:
    known = {"attempts": 1, "names": {"x": "In[1]: x = 1"}, "aliases": {"a": "b"}}
    if data.draw(st.booleans()):
        content = json.dumps(crafted(data, known)).encode()
    else:
        content = mangled(data, json.dumps(known).encode())
    (tmp_path / "notebook.json").write_bytes(content)
    with bounded():
        memo = NotebookMemo.read(tmp_path)
        assert isinstance(memo.attempts, int)
        assert all(isinstance(x, str) for x in (*memo.names.items(), *memo.aliases) for x in x)


SEEDS = [
    "x > 1 and s like 'a%'",
    "case when x is null then 0 else cast(s as int) end",
    "coalesce(d, 0) * 2 + x % 3",
    "substring(s, 1, 2) || upper(trim(s))",
    "x in (1, 2, 3) or not (d between 1 and 2)",
    "filter(array(x), y -> y > 1)[0]",
    "reflect('a', 'b') = `builtin`.`upper`(s)",
    "date_add(date '2024-01-01', x) -- why\n",
    "extract(year from timestamp '2024-01-01 00:00:00')",
    "(table s)",
]
PIECES = st.sampled_from(
    [*"()[]{}'\"`,.*+-/%<>=!|&^~:;@#$\\\n\r\0", "/*", "*/", "--", "->", "::", " select ", " from ",
     " table ", " values ", "reflect(", "cast(", " as int)", "é", "\u202e", "9" * 400, "((" * 60,
     "not " * 60, "1e999", "interval ", "x'", "r'", "{fn "]
)  # fmt: skip


@SLICE
@given(data=st.data())
def test_crafted_expression_is_read_or_refused(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(SEEDS))
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(text)))
        stop = at + data.draw(st.sampled_from([0, 0, 1, 5]))
        text = text[:at] + data.draw(st.one_of(PIECES, st.text(max_size=3))) + text[stop:]
    why = disallowed_reason(text)
    if "reflect(" in text.lower().split("'")[0]:
        assert why is not None
    with suppress(ExpressionError), bounded():
        compile_expression(text, Schema.parse("x int, s string, d double"))


def test_unbounded_nesting_is_damage(corpus: Corpus) -> None:
    catalog = meta_of(corpus.checkpoint.payload)["catalog"]
    deep: Any = []
    for _ in range(3000):
        deep = [deep]
    part = {"op": "distinct", "schema": [], "inputs": [], "params": {"x": deep}, "functions": []}
    catalog["stages"][-1].update(definition=[part], functions=[])
    with pytest.raises(CorruptLogError, match="nested deeper than 8"):
        check_catalog(catalog, 6)
    text = b'{"catalog":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    payload = frame_of(1, text)
    with pytest.raises(CorruptLogError, match="a frame cannot be decoded"):
        payloads.decode_payload(payload)


def an_operator(inputs: Any) -> dict[str, Any]:
    return {"op": "distinct", "schema": [], "inputs": inputs, "params": {}, "functions": []}


@pytest.mark.parametrize(
    ("change", "message"),
    [({"definition": [an_operator(inputs)], "functions": []}, "the catalog is invalid")
     for inputs in ([0], [1], [-1], [True], ["0"], [[]], [0.0], None)]
    + [({"definition": [an_operator([])] * parts, "functions": []}, f"{parts} operators")
       for parts in (0, OPERATORS_MAX + 1)]
    + [({"apart": apart}, "its discriminator")
       for apart in (-1, True, "1", 1.0, None, [1], 1 << 200)],
)  # fmt: skip
def test_invalid_stage_of_catalog_is_refused(
    corpus: Corpus, change: dict[str, Any], message: str
) -> None:
    catalog = meta_of(corpus.checkpoint.payload)["catalog"]
    catalog["stages"][-1].update(change)
    with pytest.raises(CorruptLogError, match=message):
        check_catalog(catalog, 6)


def test_inputs_with_equal_uid_are_refused(corpus: Corpus) -> None:
    catalog = meta_of(corpus.checkpoint.payload)["catalog"]
    first, second = (s for s in catalog["stages"] if s["name"] in ("numbers", "keyed"))
    second["uid"] = first["uid"]
    with pytest.raises(CorruptLogError, match="two inputs are the same node"):
        check_catalog(catalog, 6)


@pytest.mark.parametrize("name", [3, True, ["a"], {}])
def test_node_name_must_be_text(corpus: Corpus, name: Any) -> None:
    catalog = meta_of(corpus.checkpoint.payload)["catalog"]
    node = next(each for each in catalog["nodes"] if each["name"] is None)
    check_catalog(catalog, 6)
    node["name"] = name
    with pytest.raises(CorruptLogError, match="its name"):
        check_catalog(catalog, 6)


@pytest.mark.parametrize(
    "name",
    ["a b", "", "1a", "class", "a@1", "../x", "<b>", "a\n", 3, None, ["a"], "x" * 5 + "\x1b"],
)
@pytest.mark.parametrize("field", ["stage", "ref", "label", "once", "column"])
def test_every_name_in_log_is_checked(
    corpus: Corpus, copied: Callable[[], Path], field: str, name: Any
) -> None:
    if field in ("label", "once", "column") and isinstance(name, str):
        return  # any text is valid there
    meta = copy.deepcopy(meta_of(corpus.checkpoint.payload))
    stage = next(s for s in meta["catalog"]["stages"] if "definition" in s)
    if field == "stage":
        before, stage["name"] = stage["name"], name
        for node in meta["catalog"]["nodes"]:
            node["name"] = name if node["name"] == before else node["name"]
    elif field == "ref":
        part = next(p for p in stage["definition"] if p["op"] == "ref")
        part["params"]["name"] = name
    elif field == "column":
        stage["schema"][0][0] = name
    whole = payloads.decode_payload
    header = {"label": name} if field == "label" else {"once": [name]}

    def unpack(given: Any) -> payloads.Payload:
        found = whole(given)
        if "catalog" in found.meta and field not in header:
            return found._replace(meta={**found.meta, "catalog": meta["catalog"]})
        return found if found.meta or field not in header else found._replace(meta=header)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(payloads, "decode_payload", unpack)
        with pytest.raises(CorruptLogError):
            nosync_nb.open(copied(), mode="r")
