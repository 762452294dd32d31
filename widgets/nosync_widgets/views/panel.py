"""The panel: all views of a session in one, with the actions on the selected stage.

Design
    The panel combines views that can also be used alone. They share one poller. `Actions`, which
    the notebook provides, perform the changes. They have the same effect as the commands, and
    update variables and views.

Failure
    A button click is handled in a different thread from cells. So an action takes the session's
    writer lock, like a call in a cell, and the panel shows an error as a line of text. A stage is
    dropped only after a second click.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import ipywidgets

from nosync_widgets import formats
from nosync_widgets.live_view import SelectingView, error_text, script
from nosync_widgets.tables import Table
from nosync_widgets.views.graph_view import FrontierView
from nosync_widgets.views.layers_view import LayersView, first_layer

if TYPE_CHECKING:
    from nosync_nb.frontend import Overview, ReplicaStatus, StageOutline
    from nosync_widgets.overview_poller import OverviewPoller

_AGAIN = "run %dd panel"
_STORED = {"memory": "in memory only", "disk": "on this disk only"}
_COLUMNS = ("name", "columns", "rows", "size", "epoch", "state")
_REPLICA_COLUMNS = ("replica", "health", "epoch", "behind", "behind for", "to ship")
_TABS = ("Graph", "Layers", "Rows", "Time travel")


class Actions(Protocol):
    """The actions of a panel on a stage; each returns a message."""

    def drop(self, name: str, *, cascade: bool) -> str:
        """Drops a stage and, if `cascade`, the stages that read it."""

    def rename(self, old: str, new: str) -> str:
        """Renames a stage."""

    def rows(self, name: str) -> ipywidgets.Widget:
        """Returns the rows of a stage as a grid, which the panel must not close."""

    def travel(self, name: str) -> ipywidgets.Widget:
        """Returns the time slider of a stage, which the panel must not close."""


class ListView(SelectingView):
    """Shows inputs, stages, watched folders and replicas; the front end may select a stage."""

    _esm = script("listing.js")

    def _state_now(self) -> dict[str, Any]:
        overview = self._pulse.overview
        if overview.named(self._selected) is None:
            self._selected = ""
        return {
            "name": formats.one_line(self._pulse.branch or ""),
            "path": formats.one_line(self._pulse.session.path),
            "selected": self._selected,
            "stages": [
                {
                    "name": each.name,
                    "kind": "input" if each.is_input else "stage",
                    "cells": _stage_cells(each),
                    "bad": bool(each.why) and not each.stale,
                    "stale": each.stale,
                }
                for each in overview.collections
            ],
            "replicas": [
                {
                    "cells": _replica_cells(copy, overview),
                    "bad": copy.state in ("failing", "fenced", "ahead"),
                }
                for copy in overview.replicas
            ],
            "watches": [formats.one_line(str(each)) for each in overview.watches],
            "refused": _refusals(overview),
            "columns": _COLUMNS,
            "replica_columns": _REPLICA_COLUMNS,
            "safe": _quorum_text(overview),
        }

    def title(self) -> str:
        """Returns one line with the branch, the log and the epoch."""
        branch = f"{self.state['name']} · " if self.state["name"] else ""
        return f"panel: {branch}{self.state['path']} at epoch {self.state['epoch']}"

    def static(self) -> tuple[str, str]:
        """Returns stages and replicas as tables, with the watched folders below the stages."""
        overview = self._pulse.overview
        tables = [
            stages_table(overview),
            *([replicas_table(overview)] if overview.replicas else []),
        ]
        return "\n".join(t.text() for t in tables), "".join(t.html() for t in tables)


def stages_table(overview: Overview) -> Table:
    """Returns a table of inputs and stages, with the watched folders below."""
    return Table(
        caption=f"inputs and stages at epoch {overview.epoch}",
        columns=_COLUMNS,
        types=("string", "string", "bigint", "bigint", "bigint", "string"),
        rows=[_stage_cells(each) for each in overview.collections],
        notes=[str(each) for each in overview.watches],
        marks=_refusals(overview),
    )


def _refusals(overview: Overview) -> list[str]:
    """Returns the messages on refused files."""
    return [formats.visible(text) for each in overview.watches for text in each.refusal_texts]


def replicas_table(overview: Overview) -> Table:
    """Returns a table of the replicas with their epoch and health."""
    return Table(
        caption=_quorum_text(overview),
        columns=_REPLICA_COLUMNS,
        types=("string", "string", "bigint", "bigint", "string", "bigint"),
        rows=[_replica_cells(copy, overview) for copy in overview.replicas],
    )


def _quorum_text(overview: Overview) -> str:
    """Describes the quorum, and the last epoch that a quorum of replicas has."""
    if not overview.replicas:
        return "no replicas: %dd replicas add file:///absolute/folder"
    epochs = sorted((copy.epoch for copy in overview.replicas), reverse=True)
    safe = epochs[min(overview.quorum, len(epochs)) - 1]
    return f"replicas: epoch {safe} is on {overview.quorum} of {len(epochs)}"


def _stage_cells(each: StageOutline) -> list[str | None]:
    kind = "" if each.version == 1 else f" (version {each.version})"
    state = each.why and (
        each.status_text if each.stale else f"stopped at epoch {each.last}: {each.why}"
    )
    storage = "" if each.persist == "replicas" else f", {_STORED[each.persist]}"
    return [
        f"{each.name}{kind}",
        formats.one_line(each.schema.ddl),
        None if each.rows is None else f"{each.rows:,}",
        formats.size(each.size_bytes),
        str(each.last),
        formats.one_line(state) if state else f"{'input' if each.is_input else 'live'}{storage}",
    ]


def _replica_cells(copy: ReplicaStatus, overview: Overview) -> list[str | None]:
    health = formats.replica_state(copy.state)
    since = ""
    if copy.behind and overview.committed_at is not None:
        since = f"{copy.behind_s:.1f} s" if copy.behind_s < 60 else formats.seconds(copy.behind_s)
    return [
        formats.one_line(copy.url),
        formats.one_line(f"{health}: {copy.why}" if copy.why else health),
        str(copy.epoch),
        f"{copy.behind:,}",
        since,
        formats.size(copy.behind_bytes) if copy.behind_bytes else "",
    ]


class Panel(ipywidgets.VBox):
    """A list of inputs and stages, with actions, the graph, the layers and time travel.

    Attributes:
        pulse: the poller that notifies the views of the panel.
        listing, graph, layers: the views.
        name: the text field for the new name of a stage.
        rows, travel, rename, drop, keep: the buttons.
        cascade: the checkbox for also dropping the readers of a stage.
        said: the line with the result or the error of the last action.
    """

    def __init__(self, pulse: OverviewPoller, actions: Actions) -> None:
        # An action takes the locks of the session and of the poller, and their threads call the
        # panel with these locks held. So actions are serialised by a lock of their own, which no
        # notification takes.
        self._acting = threading.Lock()
        self._lock = threading.RLock()
        self._actions = actions
        self.pulse = pulse
        self._stage = ""
        self._confirming = False
        self.listing = ListView(pulse, chosen=self.choose, again=_AGAIN)
        self.graph = FrontierView(pulse, chosen=self.choose, again=_AGAIN)
        self.layers = LayersView(pulse, again=_AGAIN)
        self.rows = _button("Rows", "the rows of this stage: sort, filter, pages, download")
        self.travel = _button("Time travel", "the rows of this stage at any epoch")
        self.name = ipywidgets.Text(
            placeholder="new name",
            layout=ipywidgets.Layout(width="140px"),
            tooltip="new name of this stage",
        )
        self.rename = _button("Rename", "give this stage the new name")
        self.drop = _button("Drop", "drop this stage; asks for confirmation")
        self.keep = _button("Keep it", "do not drop this stage")
        self.cascade = ipywidgets.Checkbox(
            description="also drop its readers", indent=False, layout={"width": "auto"}
        )
        self.said = ipywidgets.HTML()
        self._slots = {
            tab: ipywidgets.VBox([ipywidgets.HTML(f"select a stage, and press {tab}")])
            for tab in _TABS[2:]
        }
        parts = [self.graph, self.layers, *self._slots.values()]
        self._tabs = ipywidgets.Tab(parts, titles=_TABS)
        row = ipywidgets.Layout(flex_flow="row wrap", align_items="center")
        controls = [
            *(self.rows, self.travel, self.name, self.rename, self.drop, self.cascade, self.keep)
        ]
        self._controls = ipywidgets.Box(controls, layout=row)
        super().__init__([self.listing, self._controls, self.said, self._tabs])
        for button, act in (
            (self.rows, lambda stage: self._show_in_tab("Rows", self._actions.rows(stage))),
            (
                self.travel,
                lambda stage: self._show_in_tab("Time travel", self._actions.travel(stage)),
            ),
            (self.rename, self._rename),
            (self.drop, self._drop),
            (self.keep, self._keep),
        ):
            button.on_click(self._guarded(act))
        self.choose("")
        self._leave = pulse.subscribe(self._check)

    @property
    def stage(self) -> str:
        """The selected stage; empty if none is selected."""
        return self._stage

    def choose(self, stage: str) -> None:
        """Selects a stage in all views."""
        with self._lock:
            shown = self.pulse.overview.named(stage)
            self._stage = stage if shown is not None else ""
            self._confirming = False
            self._label()
        if self.listing.selected != stage:
            self.listing.select(stage)
        if self.graph.selected != stage:
            self.graph.select(stage)
        self._follow(stage)

    def _follow(self, stage: str) -> None:
        """Shows the layers of a stage; of the default one if this and the shown one are gone."""
        overview = self.pulse.overview
        if overview.named(stage) is None and overview.named(self.layers.stage) is None:
            stage = first_layer(overview)
        if stage and self.layers.stage != stage:
            self.layers.choose(stage)

    def close(self) -> None:
        """Frees the panel, its views and controls; a second call does nothing."""
        self._leave()
        self._clear()
        for view in (self.listing, self.graph, self.layers):
            view.close()
        for part in (
            *self._controls.children,
            self._controls,
            self.said,
            *self._slots.values(),
            self._tabs,
        ):
            part.layout.close()
            part.close()
        self.layout.close()
        super().close()

    def title(self) -> str:
        """Returns one line with the branch, the log and the epoch."""
        return self.listing.title()

    def static(self) -> tuple[str, str]:
        """Returns the content as text and as HTML, without widgets."""
        parts = [view.static() for view in (self.listing, self.graph, self.layers)]
        return "\n\n".join(text for text, _ in parts), "".join(html for _, html in parts)

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        """Returns the display with the static form added, for front ends without widgets."""
        data = dict(super()._repr_mimebundle_(**kwargs) or {})
        data["text/plain"], data["text/html"] = self.static()
        return data

    def _check(self) -> None:
        """Clears the selection if the selected stage was dropped."""
        if self._stage and self.pulse.overview.named(self._stage) is None:
            with self._lock:
                self._stage = ""
                self._label()

    def _set_confirming(self, *, sure: bool) -> None:
        """Shows the buttons that confirm or cancel a drop, or hides them."""
        with self._lock:
            self._confirming = sure
            self._label()

    def _label(self) -> None:
        """Updates the controls for the selected stage. The caller holds the lock."""
        stage, none = self._stage, not self._stage
        for control in (self.rows, self.travel, self.name, self.rename, self.drop, self.cascade):
            control.set_trait("disabled", none)
        self.drop.set_trait("description", f"Drop {stage} for good" if self._confirming else "Drop")
        self.drop.set_trait("button_style", "danger" if self._confirming else "")
        for control in (self.keep, self.cascade):
            control.layout.set_trait("display", "" if self._confirming else "none")

    def _guarded(self, act: Callable[[str], str]) -> Callable[[Any], None]:
        """Returns a click handler that performs an action and shows its message or its error."""

        def handle(_button: Any) -> None:
            with self._acting:
                stage = self._stage
                if not stage:
                    return
                try:
                    text, bad = act(stage), False
                except Exception as error:
                    text, bad = error_text(error), True
                    self._set_confirming(sure=False)
                self.show_line(text, bad=bad)

        return handle

    def show_line(self, text: str, *, bad: bool = False) -> None:
        """Shows a line of text; an empty text clears the line."""
        color = "color:var(--jp-error-color1,#b3261e)" if bad else ""
        role = "alert" if bad else "status"
        line = f'<span role="{role}" style="{color}">{formats.html(text)}</span>'
        self.said.set_trait("value", line)

    def _show_in_tab(self, tab: str, view: ipywidgets.Widget) -> str:
        """Shows a view that the notebook owns in a tab; returns an empty message."""
        self._slots[tab].set_trait("children", (view,))
        self._tabs.set_trait("selected_index", _TABS.index(tab))
        return ""

    def _clear(self) -> None:
        """Removes the views from the tabs; the notebook owns them, and may have closed them."""
        for slot in self._slots.values():
            slot.set_trait("children", ())

    def _rename(self, stage: str) -> str:
        new = self.name.value.strip()
        if not new:
            return "enter a new name first"
        done = self._actions.rename(stage, new)
        self._clear()
        self.name.set_trait("value", "")
        self.pulse.refresh()
        self.choose(new)
        return done

    def _drop(self, stage: str) -> str:
        if not self._confirming:
            self._set_confirming(sure=True)
            readers = [e.name for e in self.pulse.overview.collections if stage in e.reads]
            self.cascade.set_trait("value", False)
            read = f"; it is read by {formats.listing(readers)}" if readers else ""
            return f"this deletes {stage} and its history{read}"
        done = self._actions.drop(stage, cascade=self.cascade.value)
        self._clear()
        self.pulse.refresh()
        self.choose("")
        return done

    def _keep(self, _stage: str) -> str:
        self._set_confirming(sure=False)
        return ""


def _button(text: str, title: str) -> ipywidgets.Button:
    return ipywidgets.Button(description=text, tooltip=title, layout={"width": "auto"})
