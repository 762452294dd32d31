"""Draws the graph of stages as a picture, or as indented text without `dot`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nosync_widgets import formats


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
        """Returns the picture, or None without graphviz."""
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
            graph.node(_node(name), label=label, shape=shape, style="filled", fillcolor="#f4f4f4")
            for source in sources:
                graph.edge(_node(source), _node(name))
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
    """Escapes a text for dot: no escape sequence, no entity, no HTML."""
    import graphviz

    return graphviz.escape(formats.one_line(text).replace("&", "&amp;"))


def _node(name: str) -> str:
    """Returns an identifier for dot, because a colon in a name would mean a port."""
    return "n" + name.encode().hex()
