"""`%%dd`: the collections that a body has named become stages, all of them or none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from IPython.display import display

from nosync.cells.spark_equivalents import frame_note, frames_among, without_spark
from nosync.define import Body
from nosync_widgets import formats
from nosync_widgets.data.tables import Table

if TYPE_CHECKING:
    from nosync.notebook import Notebook
    from nosync_nb import Collection
    from nosync_nb.session.report import StageReport


def define_cell(notebook: Notebook, line: str, source: str, options: dict[str, Any]) -> Any:
    """Runs a `%%dd` cell and returns the value of its last expression, if it has one.

    Args:
        options: as `DefinitionService.define` takes them.

    Raises:
        Exception: what the body raised; then its names have their old values and no stage changed.
    """
    __tracebackhide__ = True
    from nosync_nb.session.session import owners_of

    shell = notebook.shell
    notebook.reopen()
    notebook.errors.install()
    body = Body(shell, line, source, number=notebook.cells.number)
    with body.restoring():
        try:
            value = body.run()
        except Exception as error:
            ours = without_spark(error)
            if ours is None:
                raise
            raise ours.with_traceback(error.__traceback__) from error
        named, aliases = _named(notebook, body.names)
        frames = _tell_frames(notebook, body.names, source)
        if not named and not aliases:
            if not frames:
                notebook.say(
                    "NoSync: no stage: no top-level name of this cell was bound to a collection"
                )
            _tell_hidden(notebook, body.names)
            return value
        session = notebook.session()
        definitions = owners_of(session).definitions
        try:
            reports = definitions.define(named, **options) if named else []
        except Exception as error:
            place = body.bound(error, named)
            if place is not None:
                notebook.errors.blame(error, place)
            raise
        notebook.cells.defined(reports)
    for name, collection in named.items():
        notebook.variables.set(name, session[name], over=True)
        if value is collection:
            value = session[name]
    _tell_hidden(notebook, body.names)
    _show(notebook, reports, aliases)
    return value


def _tell_frames(notebook: Notebook, names: Sequence[str], source: str) -> list[str]:
    """Tells which names of the body hold DataFrames of Spark, and the definitions to write."""
    from nosync_nb import Collection

    values, session = notebook.shell.user_ns, notebook.opened

    def written(name: str) -> str | None:
        known = {} if session is None else {**session.inputs, **session.stages}
        found = next((each for each in known if each.lower() == name.lower()), None)
        if found is None:
            return None
        bound = isinstance(values.get(found), Collection) and found.isidentifier()
        return found if bound else f"nosync.session()[{found!r}]"

    frames = frames_among(names, values)
    for name in frames:
        notebook.say(frame_note(name, source, written))
    return frames


def _tell_hidden(notebook: Notebook, names: Sequence[str]) -> None:
    """Tells which names of the log the body has bound to something else."""
    from nosync_nb import Collection

    session = notebook.opened
    known = () if session is None else {**session.inputs, **session.stages}
    values = notebook.shell.user_ns
    for name in names:
        if name in known and name in values and not isinstance(values[name], Collection):
            notebook.say(
                f"NoSync: {name} holds a value of type {type(values[name]).__name__}; the log's is"
                f" still there: {name} = nosync.session()[{name!r}]"
            )


def _named(
    notebook: Notebook, names: Sequence[str]
) -> tuple[dict[str, Collection], dict[str, str | None]]:
    """Splits the body's names into definitions and other names of known collections.

    `flights = nosync.input("flights", ..)` in a body declares an input and is neither.
    """
    from nosync_nb import Collection

    inputs = () if notebook.opened is None else notebook.opened.inputs
    named: dict[str, Collection] = {}
    aliases: dict[str, str | None] = {}
    for name in names:
        value = notebook.shell.user_ns.get(name)
        if name.startswith("_") or not isinstance(value, Collection):
            continue
        registered = notebook.variables.name_of(value)
        twin = next((other for other, known in named.items() if known is value), None)
        if registered is not None and registered != name:
            aliases[name] = registered
        elif twin is not None:
            aliases[name] = twin
        elif registered is None or name not in inputs:
            named[name] = value
    return named, aliases


def _show(
    notebook: Notebook, reports: Sequence[StageReport], aliases: dict[str, str | None]
) -> None:
    """Shows one line per stage: rows, epoch, time, placement, durability."""
    notes = [f"{name} is another name of {known}" for name, known in aliases.items()]
    notes += [report.hint for report in reports if report.hint and report.status != "stale"]
    rows = [_line(report) for report in reports]
    if not rows:
        notebook.say("\n".join(notes))
        return
    table = Table(
        caption="",
        columns=("stage", "", "rows", "epoch", "time", "ran", "kept"),
        rows=rows,
        types=("string", "string", "bigint", "bigint", "bigint", "string", "string"),
        notes=notes,
        marks=[f"{each.name}: {each.hint}" for each in reports if each.status == "stale"],
    )
    notebook.say(table.text(), table.html())
    if notebook.settings.show == "rows":
        for report in reports:
            display(notebook.session()[report.name])


def _line(report: StageReport) -> list[str]:
    status = report.status
    if status == "changed":
        status = f"changed, version {report.version}"
    time = "" if report.status == "unchanged" else formats.seconds(report.seconds)
    return [
        report.name,
        status,
        f"{report.rows:,}",
        str(report.epoch),
        time,
        report.placement,
        report.durability,
    ]
