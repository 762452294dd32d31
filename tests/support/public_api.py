"""The public surface of NoSync as data: names, commands, settings, error kinds, keys in logs.

`tests/data/public_api.json` holds it, and a test compares it with the code. Run as a program, it
records additions and new summaries; it refuses to drop or change what users rely on:

    scripts/run python tests/support/public_api.py
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any, Literal, get_origin

import nosync_nb
from nosync_nb import frontend, log_folders

RECORD = Path(__file__).resolve().parents[1] / "data" / "public_api.json"
FRONT_END_OBJECTS = (
    frontend.Cursor,
    frontend.Replicas,
    frontend.SessionInfo,
    frontend.SparkControl,
    frontend.Transaction,
    log_folders.LogFolder,
)
"""The classes for front ends whose members are part of the surface; of the others only the name."""
INTERNAL = {
    **dict.fromkeys(["bare", "because", "restore", "at"], "an error"),
    **dict.fromkeys(["came_back", "gap", "lacks", "note", "regained", "remembered"], "a report"),
    **dict.fromkeys(["restored", "resumed", "took"], "a report"),
    **dict.fromkeys(
        ["Collection", "all_nodes", "each_edge", "named_nodes", "neighbours"], "graphs"
    ),
    **dict.fromkeys(["nodes_of", "upwards", "weighted", "whole"], "graphs"),
}
"""Members without underscore that other modules of NoSync call and users do not, by owner."""

SHOWN_TO_FRONT_ENDS = {
    "frontend.Cursor": {"check", "near", "take_over"},
    "frontend.Replicas": set(),
    "frontend.SessionInfo": set(),
    "frontend.SparkControl": {"start", "use_staging_area"},
    "log_folders.LogFolder": {"record_move", "restore_branch"},
}
"""The classes for front ends whose members have examples, with the members that have none."""

_KEY = re.compile(rb'"([A-Za-z_][\w-]*)":')


def surface() -> dict[str, dict[str, Any]]:
    """The surface, by kind: `names`, `summaries`, `commands`, `settings`, `errors`, `log_keys`."""
    names = dict(_names())
    return {
        "names": {name: signature for name, (signature, _) in names.items()},
        "summaries": {name: summary for name, (_, summary) in names.items() if summary},
        "commands": dict(_commands()),
        "settings": dict(_settings()),
        "errors": dict(_errors()),
        "log_keys": dict.fromkeys(sorted(_log_keys()), ""),
    }


def recorded() -> dict[str, dict[str, Any]]:
    """The surface as the file holds it."""
    found: dict[str, dict[str, Any]] = json.loads(RECORD.read_text())
    return found


def broken(before: dict[str, dict[str, Any]], now: dict[str, dict[str, Any]]) -> list[str]:
    """The parts of the surface that users rely on and that are missing. Summaries may change."""
    return [
        f"{kind}: {name} was {value!r}, is {now[kind].get(name)!r}"
        for kind, listed in before.items()
        for name, value in listed.items()
        if kind != "summaries" and not _is_kept(value, now[kind].get(name))
    ]


def _is_kept(before: Any, now: Any) -> bool:
    """Returns True if a part is as before, or a signature with more parameters with defaults."""
    if before == now or not isinstance(before, str) or not isinstance(now, str):
        return bool(before == now)
    if not (before.startswith("(") and now.startswith("(")):
        return False
    (places, keywords), (new_places, new_keywords) = _parameters(before), _parameters(now)
    added = [*new_places[len(places) :], *(new_keywords - keywords)]
    return (
        new_places[: len(places)] == places
        and keywords <= new_keywords
        and all("=" in each for each in added)
    )


def _parameters(signature: str) -> tuple[list[str], set[str]]:
    """Returns the parameters before a `*`, and those behind it with that of `**`."""
    parts = re.split(r", (?![^\[({]*[\])}])", signature[1 : signature.rindex(")")])
    stars = [i for i, part in enumerate(parts) if part.startswith("*")] or [len(parts)]
    return parts[: stars[0]], {part for part in parts[stars[0] :] if part != "*"}


def names_for_users() -> list[str]:
    """Returns the recorded names that users call, such as `Session.commit`."""
    return [name for name in recorded()["names"] if _is_for_users(name)]


def _is_for_users(name: str) -> bool:
    owner, _, member = name.rpartition(".")
    if name.startswith(("frontend.", "log_folders.")):  # of the rest users see results alone
        return owner in SHOWN_TO_FRONT_ENDS and member not in SHOWN_TO_FRONT_ENDS[owner]
    value = getattr(nosync_nb, owner, None)
    if inspect.isclass(value) and issubclass(value, nosync_nb.NosyncError):
        return INTERNAL.get(member) != "an error"
    kind = {"RecoveryReport": "a report", "graphs": "graphs"}.get(owner)
    return kind is None or INTERNAL.get(member) != kind


def docstring(name: str) -> str:
    import nosync

    *path, last = name.split(".")
    owner = reduce(getattr, path, nosync)
    value = inspect.getattr_static(owner, last) if path else getattr(nosync, last)
    return inspect.getdoc(value) or ""


def _names() -> Iterator[tuple[str, tuple[str, str]]]:
    """Each public name, with its members: signature and summary."""
    import nosync

    named = {name: getattr(nosync, name) for name in {*nosync.__all__, *nosync_nb.__all__}}
    for module in (frontend, log_folders):
        short = module.__name__.rpartition(".")[2]
        named |= {f"{short}.{name}": getattr(module, name) for name in module.__all__}
    for name, value in sorted(named.items()):
        if inspect.isclass(value) or inspect.ismodule(value):
            yield name, (type(value).__name__, _summary(value))
            if "." not in name or value in FRONT_END_OBJECTS:
                yield from _members(name, value)
        elif get_origin(value) is Literal:
            yield name, (str(value), "")
        else:
            yield name, (_signature(value), _summary(value))


def _members(name: str, owner: Any) -> Iterator[tuple[str, tuple[str, str]]]:
    listed = getattr(owner, "__all__", None) or [n for n in dir(owner) if not n.startswith("_")]
    for each in sorted(listed):
        static, value = inspect.getattr_static(owner, each), getattr(owner, each)
        if isinstance(static, property):
            yield f"{name}.{each}", ("property", _summary(static))
        elif callable(value) and str(getattr(value, "__module__", "")).startswith("nosync"):
            yield f"{name}.{each}", (_signature(value), _summary(value))


def _signature(value: Any) -> str:
    """The parameters with their defaults, without types, which have several spellings."""
    if not callable(value):
        return type(value).__name__
    given = inspect.signature(value).parameters.values()
    plain = [p.replace(annotation=p.empty) for p in given if p.name not in ("self", "cls")]
    return str(inspect.Signature(plain))


def _summary(value: Any) -> str:
    """The first paragraph of the docstring."""
    return " ".join((inspect.getdoc(value) or "").strip().split("\n\n")[0].split())


def _commands() -> Iterator[tuple[str, list[str]]]:
    """The arguments of `%%dd` and of each `%dd` command."""
    from nosync.commands.dispatch import COMMANDS, parser_of
    from nosync.magic import NoSync

    yield "%%dd", sorted(_arguments(NoSync.dd.parser))
    for name in sorted(COMMANDS):
        yield f"%dd {name}", sorted(_arguments(parser_of(COMMANDS[name])))


def _arguments(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._get_optional_actions() + parser._get_positional_actions():
        choices = f" {'|'.join(map(str, action.choices))}" if action.choices else ""
        yield (", ".join(action.option_strings) or action.dest) + choices


def _settings() -> Iterator[tuple[str, str]]:
    """The settings of `%config NoSync` with their defaults."""
    from nosync.magic import NoSync

    for name, trait in sorted(NoSync.class_traits(config=True).items()):
        yield name, repr(trait.default())


def _errors() -> Iterator[tuple[str, list[str]]]:
    """The kind of each error, and the classes by which it can be caught."""
    for name in nosync_nb.__all__:
        error = getattr(nosync_nb, name)
        if inspect.isclass(error) and issubclass(error, nosync_nb.NosyncError):
            yield name, [error.kind, *(each.__name__ for each in error.__mro__[1:-1])]


def _log_keys() -> set[str]:
    """The JSON keys in the files of a log with an input, stages, branches and a rewind."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with nosync_nb.open(log) as session:
            rows = session.input("rows", "k int, v double", key="k")
            big = session.stage("big", rows.filter("v > 1"))
            session.stage("sums", big.group_by("k").agg(total="sum(v)"))
            session.stage("twice", rows.map(lambda row: (row.k * 2,), schema="k int"))
            rows.insert([(1, 1.5), (2, 0.5)], once="first")
            session.commit(label="first load")
            session.pin(1, "first")
            session.retain = 10
            rows.insert([(3, 2.5)])
            session.commit()
            session.branch("idea").close()
            session.rewind(to=1)
            session.rename("big", "large")
            session.drop("twice")
            session.sync()
        files = (path.read_bytes() for path in log.rglob("*") if path.is_file())
        return {key.decode() for data in files for key in _KEY.findall(data)}


if __name__ == "__main__":
    made = surface()
    lost = broken(recorded(), made) if RECORD.exists() else []
    if lost:
        sys.exit("\n".join(["not recorded, users rely on this:", *lost]))
    RECORD.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")
