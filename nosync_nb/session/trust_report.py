"""Trusting: whose key signed a log, and what running its cells would define, as text.

Nothing is compiled or loaded to tell it. There is no switch that trusts a log: a stage becomes the
user's by the user's own cell, and a log by the key that signed it.
"""

from __future__ import annotations

from typing import NamedTuple

from nosync_nb.collections.definition import Definition
from nosync_nb.collections.functions import signing
from nosync_nb.dataflow.stage import Stage
from nosync_nb.errors import one_line
from nosync_nb.session.session import Session, owners_of
from nosync_nb.store.catalog import signature

_SHOWN_MAX = 400


class StageTrust(NamedTuple):
    """A stage: who described it, why it is held, and its operators, outermost first."""

    name: str
    whose: str
    held: str | None
    text: str


class TrustReport(NamedTuple):
    """Whose log it is, in words, and its stages; texts may be a stranger's, and are one line."""

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


def trust_report(session: Session) -> TrustReport:
    """Tells whose key signed the log of a session, and what its stages are. Runs nothing."""
    owners = owners_of(session)
    publisher, signer = owners.publisher, owners.signer
    key, unfit = signature.own_key()
    origin, said = signer.origin, signer.said
    log = publisher.store.log
    if log.mode == "r" and said is not None:
        origin = signature.judge_signature(key, log.id, said.epoch, said.catalog, said.signature)
    catalog = publisher.snapshot.catalog
    described_here = [s for s in catalog.values() if s.definition and not s.frozen]
    if log.mode == "w" and described_here and all(s.signer is None for s in described_here):
        origin = signature.OWN  # by now: the user's cells have defined what was another's
    stages = [
        StageTrust(
            one_line(s.name), _whose(s, origin), s.held and one_line(s.held), stage_summary(s)
        )
        for s in described_here
    ]
    yours = unfit or (
        f"{signing.key_id(key)}, at '{signing.key_path()}'" if key else "there is none"
    )
    return TrustReport(log.id.hex(), _signed(origin), one_line(yours), stages)


def _signed(origin: signature.CatalogOrigin) -> str:
    if origin.own:
        return "signed with your key"
    if not origin.signer:
        return "signed by nobody"
    return f"signed with key {origin.signer}, or so it says; it is not believed"


def _whose(stage: Stage, origin: signature.CatalogOrigin) -> str:
    signer = origin.signer if stage.signer is None else stage.signer
    return "yours" if signer is None else f"of key {signer}" if signer else "of nobody"


def stage_summary(stage: Stage) -> str:
    """What a stage computes, as one line that is cut where it is long."""
    assert stage.definition is not None
    text = one_line(_text(stage.definition))
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 1] + "…"


def _text(tree: Definition) -> str:
    """An operator and those below it, as calls; as much of them as can be shown."""
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
        given: list[str | Definition] = [f"{key}={value!r}" for key, value in part.params.items()]
        given += [f"function {each.identity[:12]}" for each in part.captured]
        inner = []
        for each in (*part.inputs, *given):
            inner += (", ", each)
        waiting += [")", *reversed(inner[1:]), f"{part.op}("]
    return "".join(pieces)
