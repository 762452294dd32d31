"""The list of inputs and stages, watched folders and replicas at the top of a panel."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nosync_widgets import formats
from nosync_widgets.data.tables import Table
from nosync_widgets.live.comm_replies import AGAIN
from nosync_widgets.live.live_view import LiveView, script

if TYPE_CHECKING:
    from nosync_nb.frontend import Overview, ReplicaStatus, StageOutline
    from nosync_widgets.live.overview_poller import OverviewPoller

COLUMNS = ("name", "columns", "rows", "size", "epoch", "state")
_REPLICA_COLUMNS = ("replica", "health", "epoch", "behind", "behind for", "to ship")


class ListView(LiveView):
    """Shows inputs, stages, watched folders and replicas; the front end may select a stage.

    Args:
        chosen: called with a stage that the front end selects.
    """

    _esm = script("listing.js")

    def __init__(
        self,
        pulse: OverviewPoller,
        *,
        chosen: Callable[[str], None] | None = None,
        again: str = AGAIN,
    ) -> None:
        self._selected = ""
        self._on_chosen = chosen
        super().__init__(pulse, again=again)

    @property
    def selected(self) -> str:
        """The selected stage; empty: none."""
        return self._selected

    def select(self, stage: str) -> None:
        """Marks a stage as selected."""
        with self._lock:
            self._selected = stage
        self.show()

    def _handle_request(self, content: dict[str, Any]) -> None:
        self._selected = str(content.get("select", self._selected))

    def _notify_choice(self) -> None:
        if self._on_chosen is not None:
            self._on_chosen(self._selected)

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
                    "cells": _cells(each),
                    "bad": bool(each.why) and not each.stale,
                    "stale": each.stale,
                }
                for each in overview.collections
            ],
            "replicas": [
                {
                    "cells": _replica(copy, overview),
                    "bad": copy.state in ("failing", "fenced", "ahead"),
                }
                for copy in overview.replicas
            ],
            "watches": [formats.one_line(str(each)) for each in overview.watches],
            "refused": _refusals(overview),
            "columns": COLUMNS,
            "replica_columns": _REPLICA_COLUMNS,
            "safe": _safe(overview),
        }

    def title(self) -> str:
        """Returns one line: log and epoch."""
        branch = f"{self.state['name']} · " if self.state["name"] else ""
        return f"panel: {branch}{self.state['path']} at epoch {self.state['epoch']}"

    def static(self) -> tuple[str, str]:
        """Returns stages and replicas as tables; watched folders are below the stages."""
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
        columns=COLUMNS,
        types=("string", "string", "bigint", "bigint", "bigint", "string"),
        rows=[_cells(each) for each in overview.collections],
        notes=[str(each) for each in overview.watches],
        marks=_refusals(overview),
    )


def _refusals(overview: Overview) -> list[str]:
    """Returns the messages on refused files."""
    return [formats.visible(text) for each in overview.watches for text in each.refusal_texts]


def replicas_table(overview: Overview) -> Table:
    """Returns a table of the replicas with their epoch and health."""
    return Table(
        caption=_safe(overview),
        columns=_REPLICA_COLUMNS,
        types=("string", "string", "bigint", "bigint", "string", "bigint"),
        rows=[_replica(copy, overview) for copy in overview.replicas],
    )


def _safe(overview: Overview) -> str:
    """Describes the quorum, and the epoch that it has."""
    if not overview.replicas:
        return "no replicas: %dd replicas add file:///absolute/folder"
    epochs = sorted((copy.epoch for copy in overview.replicas), reverse=True)
    safe = epochs[min(overview.quorum, len(epochs)) - 1]
    return f"replicas: epoch {safe} is on {overview.quorum} of {len(epochs)}"


def _cells(each: StageOutline) -> list[str | None]:
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


_STORED = {"memory": "in memory only", "disk": "on this disk only"}


def _replica(copy: ReplicaStatus, overview: Overview) -> list[str | None]:
    health = {"level": "up to date", "behind": "catching up"}.get(copy.state, copy.state)
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
