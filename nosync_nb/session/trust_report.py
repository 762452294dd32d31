"""Reports the key that signed a log, and the stages that its cells would define, as text.

It compiles and loads nothing. No switch makes a log trusted: a stage becomes the user's through the
user's own cell, and a log through the key that signed it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nosync_nb.collections.definition import Definition
from nosync_nb.collections.functions import signing
from nosync_nb.dataflow.stage import Stage
from nosync_nb.errors import one_line
from nosync_nb.store.catalog import signature

if TYPE_CHECKING:
    from nosync_nb.session.services import Services

_SHOWN_MAX = 400


class StageTrust(NamedTuple):
    """A stage: its author, why it is not run, and its operators, outermost first."""

    name: str
    whose: str
    held: str | None
    text: str


class TrustReport(NamedTuple):
    """The origin of a log, in words, and its stages; untrusted texts are shown as one line."""

    log: str
    whose: str
    yours: str
    stages: list[StageTrust]

    def __str__(self) -> str:
        lines = [f"log {self.log}: {self.whose}", f"your key: {self.yours}"]
        for name, whose, held, text in self.stages:
            lines.append(f"{name}: {whose}{f'; {held}' if held else ''}")
            lines.append(f"    {text}")
        return "\n".join(lines)


def trust_report(services: Services) -> TrustReport:
    """Returns the origin of a session's log and of its stages. Runs nothing."""
    publisher, signer = services.publisher, services.signer
    key, unfit = signature.own_key()
    origin, written = signer.origin, signer.said
    log = publisher.store.log
    if log.mode == "r" and written is not None:
        origin = signature.judge_signature(
            key, log.id, written.epoch, written.catalog, written.signature
        )
    catalog = publisher.snapshot.catalog
    described_here = [s for s in catalog.values() if s.definition and not s.frozen]
    if log.mode == "w" and described_here and all(s.signer is None for s in described_here):
        origin = signature.OWN  # the user's cells have redefined every stage
    stages = [
        StageTrust(
            one_line(s.name), _author_text(s, origin), s.held and one_line(s.held), stage_summary(s)
        )
        for s in described_here
    ]
    yours = unfit or (f"{signing.key_id(key)}, at '{signing.key_path()}'" if key else "none")
    return TrustReport(log.id.hex(), _origin_text(origin), one_line(yours), stages)


def _origin_text(origin: signature.CatalogOrigin) -> str:
    if origin.is_by_this_user:
        return "signed with your key"
    if not origin.signer:
        return "unsigned"
    return f"claims to be signed with key {origin.signer}; not trusted"


def _author_text(stage: Stage, origin: signature.CatalogOrigin) -> str:
    signer = origin.signer if stage.signer is None else stage.signer
    return "yours" if signer is None else f"of key {signer}" if signer else "unsigned"


def stage_summary(stage: Stage) -> str:
    """Returns the definition of a stage as one line, truncated if it is long."""
    assert stage.definition is not None
    text = one_line(_definition_text(stage.definition))
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 1] + "…"


def _definition_text(tree: Definition) -> str:
    """Returns an operator and its inputs as nested calls, truncated to what can be shown."""
    pieces: list[str] = []
    waiting: list[str | Definition] = [tree]
    inner: list[str | Definition]
    length = 0
    while waiting and length <= _SHOWN_MAX:
        part = waiting.pop()
        if isinstance(part, Definition) and part.is_ref:
            part = part.name
        if isinstance(part, str):
            pieces.append(part)
            length += len(part)
            continue
        arguments: list[str | Definition] = [
            f"{key}={value!r}" for key, value in part.params.items()
        ]
        arguments += [f"function {each.identity[:12]}" for each in part.captured]
        inner = []
        for each in (*part.inputs, *arguments):
            inner += (", ", each)
        waiting += [")", *reversed(inner[1:]), f"{part.op}("]
    return "".join(pieces)
