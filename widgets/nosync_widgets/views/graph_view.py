"""The graph of stages with their frontiers, the cost of each failure, and rows of one stage.

Design
    The browser lays the graph out (static/frontier.js); no `dot` is needed. graphviz-anywidget was
    rejected: it sends 1.2 MB of script for each view, and repeats the layout for each figure that
    changes. Its nodes cannot be focused, and it does not report clicks to the kernel.

    The first rows of the selected stage are read in the thread that notifies the view, so that a
    commit never waits. They are shown with their epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import traitlets

from nosync_widgets import formats
from nosync_widgets.live_view import SelectingView, column_fields, error_text, script
from nosync_widgets.tables import Table

if TYPE_CHECKING:
    from nosync_nb import Session
    from nosync_nb.frontend import FailureCost, Overview, StageOutline

_ROWS = 20
_TRIES = 3
_COLUMNS = 200


class FrontierView(SelectingView):
    """Shows the graph of all inputs and stages, and the rows of the selected one."""

    _esm = script("frontier.js")

    page = traitlets.Dict(
        help="The first rows of the selected stage, as strings; empty: none is selected."
    ).tag(sync=True)

    def show(self) -> None:
        """Shows the current overview of the poller, and rows of the selected stage."""
        super().show()
        with self._lock:
            if not self._closed:
                self.page = self._page() if self._selected else {}

    def _notify_choice(self) -> None:
        if self._selected:
            super()._notify_choice()

    def _state_now(self) -> dict[str, Any]:
        overview = self._pulse.overview
        names = {each.name for each in overview.collections}
        if self._selected not in names:
            self._selected = ""
        return {
            "name": formats.one_line(self._pulse.branch or ""),
            "selected": self._selected,
            "costs": [_cost(cost) for cost in overview.costs],
            "nodes": [_node(each, names) for each in overview.collections],
            "replicated": bool(overview.replicas),
        }

    def _page(self) -> dict[str, Any]:
        """Returns the page of the selected stage; reads rows only if its epoch or state changed."""
        overview, session = self._pulse.overview, self._pulse.session
        name = self._selected
        shown = overview.named(name)
        if shown is None:
            return {}
        branch = self._pulse.branch or ""
        page = {
            "stage": name,
            "epoch": session.now if shown.live else shown.last,
            "version": shown.version,
            "branch": branch,
            "incarnation": session.info.rewinds,
            "stale": formats.visible(shown.status_text) if shown.stale else "",
        }
        if all(self.page.get(key) == page[key] for key in page):
            return dict(self.page)
        try:
            page["epoch"], rows = _read(session, shown)
        except Exception as error:
            return {**page, "error": error_text(error), "columns": [], "rows": [], "more": False}
        return {
            **page,
            "error": "",
            "columns": column_fields(shown.schema, _COLUMNS),
            "rows": [[formats.value(item) for item in row] for row in rows[:_ROWS]],
            "more": len(rows) > _ROWS,
        }

    def title(self) -> str:
        """Returns one line with the epoch, and the numbers of inputs and stages."""
        stages = [each for each in self._pulse.overview.collections if not each.is_input]
        inputs = len(self._pulse.overview.collections) - len(stages)
        counted = f"{formats.count(inputs, 'input')}, {formats.count(len(stages), 'stage')}"
        branch = f"{self.state['name']}, " if self.state["name"] else ""
        return f"graph of {branch}epoch {self.state['epoch']}: {counted}"

    def static(self) -> tuple[str, str]:
        """Returns the graph as lines of text, and as a table."""
        overview = self._pulse.overview
        reads = {each.name: each.reads for each in overview.collections}
        details = {each.name: _detail(each) for each in overview.collections}
        picture = GraphPicture(reads, details=details)
        return picture.text(), overview_table(overview).html()


def _read(session: Session, shown: StageOutline) -> tuple[int, list[Any]]:
    """Reads the epoch and the first rows of a stage.

    The current rows are read without an epoch, which is faster. They belong to the last epoch if no
    further epoch was committed meanwhile. After three failed tries, the rows are read at an epoch.
    """
    collection = session[shown.name]
    if shown.stale:
        cursor = session.cursor(collection)
        return cursor.epoch, cursor.page((), 0, _ROWS + 1)
    for _ in range(_TRIES):
        if not shown.live:
            break
        epoch = session.now
        rows = collection.rows(limit=_ROWS + 1)
        if session.now == epoch:
            return epoch, rows
    epoch = session.now if shown.live else shown.last
    return epoch, collection.rows(at=epoch, limit=_ROWS + 1)


def overview_table(overview: Overview) -> Table:
    """Returns a table of inputs and stages, with notes on the cost of each failure."""
    costs = [_cost(cost) for cost in overview.costs]
    return Table(
        caption=f"inputs and stages at epoch {overview.epoch}",
        columns=("name", "reads", "columns", "rows", "ran", "epoch", "disk", "replicas", "state"),
        types=("string", "string", "string", "bigint", "string", *["bigint"] * 3, "string"),
        rows=[
            [
                each.name,
                ", ".join(each.reads),
                formats.one_line(each.schema.ddl),
                None if each.rows is None else f"{each.rows:,}",
                _run_text(each),
                str(each.frontier.memory),
                str(each.frontier.disk),
                formats.value(each.frontier.replicas),
                each.status_text or "live",
            ]
            for each in overview.collections
        ],
        notes=[f"if {cost['what']}: {cost['text']}" for cost in costs],
    )


def _cost(cost: FailureCost) -> dict[str, Any]:
    """Describes a failure, and the epochs that it would lose."""
    what = {"kernel": "the kernel dies", "power": "the power fails", "disk": "the disk is lost"}
    failure = what[cost.failure]
    if cost.lost:
        failure = f"the disk and {formats.count(cost.lost, 'replica')} are lost"
    text = "nothing would be lost"
    if cost.epochs:
        whole = "all " if not cost.epoch and cost.epochs > 1 else ""
        since = f", since {formats.moment(cost.since)}" if cost.since else ""
        lost = f"{whole}{formats.count(cost.epochs, 'epoch')} would be lost{since}"
        text = f"back to epoch {cost.epoch}: {lost}"
    return {"what": failure, "text": text, "epochs": cost.epochs}


def _node(each: StageOutline, names: set[str]) -> dict[str, Any]:
    """Returns the data of an input or stage that the front end draws."""
    return {
        "name": each.name,
        "text": formats.one_line(each.name),
        "kind": "input" if each.is_input else "stage",
        "version": each.version,
        "reads": [name for name in dict.fromkeys(each.reads) if name in names],
        "columns": column_fields(each.schema, _COLUMNS),
        "detail": _detail(each),
        "ran": _run_text(each),
        "levels": _levels(each),
        "after": [[failure, epoch] for failure, epoch in each.after.items()],
        "why": formats.one_line(each.status_text),
        "stale": each.stale,
    }


def _levels(each: StageOutline) -> list[list[Any]]:
    """Returns the last epochs of a stage in memory, on disk and on a quorum of replicas."""
    frontier = each.frontier
    levels: list[list[Any]] = [["memory", frontier.memory]]
    if each.persist != "memory":
        levels.append(["disk", frontier.disk])
        if frontier.replicas is not None and each.persist != "disk":
            levels.append(["replicas", frontier.replicas])
    return levels


def _detail(each: StageOutline) -> str:
    rows = "cannot be read" if each.rows is None else formats.count(each.rows, "row")
    return f"{rows} · {formats.size(each.size_bytes)}"


def _run_text(each: StageOutline) -> str:
    """Describes the time and placement of the last run."""
    work = each.work
    if work is None:
        return "changed by you" if each.is_input else "not run here yet"
    return f"{formats.seconds(work.seconds)} · {work.placement}"


class GraphPicture:
    """The graph of stages; displays as SVG, or as text when graphviz is not installed."""

    def __init__(
        self,
        reads: Mapping[str, Sequence[str]],
        *,
        inputs: Iterable[str] = (),
        details: Mapping[str, str] | None = None,
    ) -> None:
        self._reads = {name: tuple(sources) for name, sources in reads.items()}
        self._inputs = set(inputs)
        self._details = dict(details or {})

    def text(self) -> str:
        """Returns one line per stage: `slow <- flights, planes   (12 rows)`."""
        lines = []
        for name, sources in self._reads.items():
            detail = f"   ({self._details[name]})" if name in self._details else ""
            line = f"{name} <- {', '.join(sources)}{detail}" if sources else f"{name}{detail}"
            lines.append(formats.one_line(line))
        return "\n".join(lines) or "no inputs and no stages yet"

    def svg(self) -> str | None:
        """Returns the picture as SVG; None if graphviz is not installed, or fails."""
        import graphviz

        graph = graphviz.Digraph(
            "nosync",
            graph_attr={"rankdir": "LR", "bgcolor": "transparent"},
            node_attr={"fontname": "sans-serif", "fontsize": "11", "color": "#888888"},
            edge_attr={"color": "#888888"},
        )
        for name, sources in self._reads.items():
            label = _label(name)
            if name in self._details:
                label = graphviz.nohtml(f"{label}\\n{_label(self._details[name])}")
            shape = "cylinder" if name in self._inputs else "box"
            graph.node(
                _node_id(name), label=label, shape=shape, style="filled", fillcolor="#f4f4f4"
            )
            for source in sources:
                graph.edge(_node_id(source), _node_id(name))
        try:
            return str(graph.pipe(format="svg", encoding="utf-8"))
        except (graphviz.ExecutableNotFound, graphviz.CalledProcessError):
            return None

    def _repr_mimebundle_(self, **_kwargs: Any) -> dict[str, str]:
        bundle = {"text/plain": self.text()}
        picture = self.svg()
        if picture is not None:
            bundle["image/svg+xml"] = picture[picture.index("<svg") :]
        return bundle


def _label(text: str) -> Any:
    """Escapes a text for dot, which interprets escape sequences, entities and HTML."""
    import graphviz

    return graphviz.escape(formats.one_line(text).replace("&", "&amp;"))


def _node_id(name: str) -> str:
    """Returns an identifier for dot, because a colon in a name would mean a port."""
    return "n" + name.encode().hex()
