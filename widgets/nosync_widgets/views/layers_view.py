"""The layers of a stage: as a picture that follows merges and shipping, and as a table.

A layer is a rectangle over its epochs, in the lane of its level. Its colour is that of the safest
storage that has the whole layer. Each storage (memory, disk, each replica) has a bar over the
epochs that are readable from it alone. The bar grows as epochs arrive there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from nosync_widgets import formats
from nosync_widgets.live_view import AGAIN, LiveView, script
from nosync_widgets.tables import Table

if TYPE_CHECKING:
    from nosync_nb.frontend import Overview, StageOutline
    from nosync_widgets.overview_poller import OverviewPoller


class LayersView(LiveView):
    """Shows the layers of one stage; the front end may request another stage."""

    _esm = script("layers.js")

    def __init__(
        self, pulse: OverviewPoller, stage: str | None = None, *, again: str = AGAIN
    ) -> None:
        self._stage = stage or first_layer(pulse.overview)
        super().__init__(pulse, again=again)

    @property
    def stage(self) -> str:
        """The stage shown; empty if the log has no stages."""
        return self._stage

    def title(self) -> str:
        """Returns one line with the stage, the epoch and the number of layers."""
        count = formats.count(len(self.state["layers"]), "layer")
        return f"layers of {self.state['name']} at epoch {self.state['epoch']}: {count}"

    def choose(self, stage: str) -> None:
        """Shows another stage."""
        with self._lock:
            self._stage = stage
        self.show()

    def _handle_request(self, content: dict[str, Any]) -> None:
        self._stage = str(content.get("stage", self._stage))

    def _state_now(self) -> dict[str, Any]:
        overview = self._pulse.overview
        shown = overview.named(self._stage)
        names = [each.name for each in overview.collections]
        state: dict[str, Any] = {
            "stage": self._stage,
            "name": formats.one_line(self._pulse.name(self._stage)),
            "stages": [[name, formats.one_line(name)] for name in names],
            "layers": [],
            "places": [],
            "why": "",
            "stale": "",
        }
        if shown is None:
            message = f"stage '{self._stage}' does not exist any more" if self._stage else ""
            return {**state, "why": formats.visible(message or "no inputs and no stages yet")}
        layers = self._pulse.session.info.layers(self._stage)
        return {
            **state,
            "why": "" if shown.stale else formats.visible(shown.why),
            "stale": formats.visible(shown.status_text) if shown.stale else "",
            "last": shown.last,
            "layers": [
                {
                    "lower": layer["lower"],
                    "upper": layer["upper"],
                    "level": layer["level"],
                    "rows": formats.count(layer["rows"], "row"),
                    "size": formats.size(layer["bytes"]),
                    "bytes": layer["bytes"],
                    "merging": layer["merging"],
                }
                for layer in layers
            ],
            "places": layer_places(overview, shown),
            "quorum": overview.quorum if shown.persist == "replicas" else 0,
        }

    def static(self) -> tuple[str, str]:
        """Returns the layers as a table, in text and in HTML."""
        name = self._stage
        layers = self._pulse.session.info.layers(name) if self.state["layers"] else []
        table = layers_table({self._pulse.name(name): layers}, epoch=self.state["epoch"])
        return table.text(), table.html()


def first_layer(overview: Overview) -> str:
    """Returns the stage that is shown by default: the last of the overview; empty without any."""
    return overview.collections[-1].name if overview.collections else ""


def layer_places(overview: Overview, shown: StageOutline) -> list[dict[str, Any]]:
    """Returns the storages of a stage, each with the last epoch that is readable from it."""
    found: list[dict[str, Any]] = [
        {"kind": "memory", "name": "memory", "epoch": shown.frontier.memory, "note": ""}
    ]
    if shown.persist == "memory":
        return [{**found[0], "note": "in memory only"}]
    found.append({"kind": "disk", "name": "disk", "epoch": shown.frontier.disk, "note": ""})
    if shown.persist == "disk":
        found[-1]["note"] = "on this disk only"
        return found
    # not strict, because the replicas may have changed since the overview was built
    copies = zip(overview.replicas, shown.copies, strict=False)
    for number, (copy, epoch) in enumerate(copies, 1):
        lacks = formats.size(copy.behind_bytes) if copy.behind and copy.behind_bytes else ""
        state = "" if copy.state in ("level", "behind") else copy.state
        note = [state, f"{lacks} to ship" if lacks else "", copy.why]
        found.append(
            {
                "kind": "replica",
                "name": f"replica {number}",
                "where": formats.one_line(copy.url),
                "epoch": epoch,
                "note": formats.one_line(" · ".join(filter(None, note))),
            }
        )
    return found


def layers_table(layers: Mapping[str, Iterable[Mapping[str, Any]]], *, epoch: int) -> Table:
    """Returns a table of the layers of the given stages."""
    return Table(
        caption=f"layers at epoch {epoch}: each holds the net changes of epochs in [lower, upper)",
        columns=("stage", "lower", "upper", "level", "rows", "size", "stored"),
        types=("string", "bigint", "bigint", "bigint", "bigint", "bigint", "string"),
        rows=[
            [
                name,
                str(layer["lower"]),
                str(layer["upper"]),
                str(layer["level"]),
                f"{layer['rows']:,}",
                formats.size(layer["bytes"]),
                layer["persistence"],
            ]
            for name, each in layers.items()
            for layer in each
        ],
    )
