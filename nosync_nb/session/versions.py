"""Versions: what a definition changes, decided purely.

Equal by fingerprint: nothing. Else a stage gets a new version, the old one stays readable as
`name@version`, and what reads the stage follows by name. A stage that cannot follow, as a column
that it uses or a function is missing, or as it reads such a stage, is *stale*: it stops and keeps
its last epoch. As soon as nothing is missing it goes on where it stopped, and epochs that have
passed since are run. Only if what it reads cannot be read as of then any more, it is a new version,
computed as of now.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import NamedTuple

from nosync_nb.collections.definition import Definition
from nosync_nb.collections.functions.captured import Unknown
from nosync_nb.dataflow.fitting import rebased
from nosync_nb.dataflow.snapshot import Snapshot
from nosync_nb.dataflow.stage import Frozen, Stage, Stale
from nosync_nb.errors import StageError
from nosync_nb.expressions import Types
from nosync_nb.session import lag

Catalog = dict[str, Stage]


class Decision(NamedTuple):
    """What a definition does.

    Attributes:
        catalog: the new catalog, what is read first.
        status: by stage: new, unchanged, changed, followed (it reads something that changed),
            resumed, extended (it resumed and had missed epochs) or stale.
        anew: stages whose results must not be taken over, although their definition is equal.
        lost: stages that resumed and could not be extended, with the reason.
    """

    catalog: Catalog
    status: dict[str, str]
    anew: set[str]
    lost: dict[str, str]

    @property
    def extended(self) -> set[str]:
        """The stages that go on where they stopped, with the epochs that they missed."""
        return {name for name, status in self.status.items() if status == "extended"}

    @property
    def same(self) -> Catalog:
        """What goes on as it was."""
        return {n: s for n, s in self.catalog.items() if self.status.get(n, KEPT[0]) in KEPT}

    def changes(self, before: Mapping[str, Stage]) -> bool:
        """Whether anything changes for a catalog."""
        return any(
            status != "unchanged" and not (status == "stale" and before[name].reason)
            for name, status in self.status.items()
        )


KEPT = ("unchanged", "resumed", "extended")
"""What stages go on as, of which the version, the rows and the state are kept."""


def kept(catalog: Catalog) -> Decision:
    """That nothing changes for the stages of a catalog."""
    return Decision(catalog, {}, set(), {})


def transition(before: Stage | None, *, equal: bool, missing: str | None, now: int) -> str:
    """What becomes of a stage that can be computed.

    Args:
        before: what it was.
        equal: what it held may be taken over, as it means the same.
        missing: why epochs that it has missed cannot be had.
        now: the last epoch.
    """
    match before:
        case None:
            return "new"
        case Stage() if not equal:
            return "changed"
        case Stage(life=Stale()) if missing is not None:
            return "changed"
        case Stage(life=Stale(since=since)):
            return "extended" if since < now else "resumed"
        case _:
            return "unchanged"


def resumed(seen: Snapshot, types: Types | None, *, extend: bool) -> Decision:
    """Decides which of the stages that have stopped go on after a recovery.

    Args:
        extend: those go on that have missed epochs and can have them; the others need their cells.
    """
    prints = {name: stage.fingerprint for name, stage in seen.catalog.items()}
    decision = kept({})
    for name, stage in seen.catalog.items():
        decision.catalog[name] = stage
        if stage.definition is None or stage.reason is None or not extend or stage.held is not None:
            continue
        fresh, why = rebased(stage.resumed(), decision.catalog, types)
        if why or halted(fresh, decision.catalog) or fresh.meaning(prints) != prints[name]:
            continue
        if lag.unreadable(seen, stage, decision.catalog) is None:
            decision.catalog[name] = fresh
            decision.status[name] = "extended"
    return decision


def decided(
    seen: Snapshot,
    types: Types | None,
    catalog: Catalog,
    named: AbstractSet[str],
    *,
    again: AbstractSet[str],
) -> Decision:
    """Decides what becomes of each stage.

    Args:
        seen: what is there before.
        catalog: with the definitions that are asked for.
        named: the stages they are asked for.
        again: those of them that are computed anew even if they are equal.

    Raises:
        StageError: if stages read each other in a circle, or something that cannot be computed.
    """
    decision = kept({})
    trees = {
        n: s.definition
        for n, s in catalog.items()
        if s.definition and not s.frozen and s.held is None
    }
    prints = {name: stage.fingerprint for name, stage in catalog.items() if name not in trees}
    decision.catalog.update((name, catalog[name]) for name in prints)
    for name in ordered(trees):
        before = seen.catalog.get(name)
        stage, why = rebased(catalog[name].resumed(), decision.catalog, types)
        why = why or halted(stage, decision.catalog)
        if why is None:
            stage = stage.identified(prints)
            prints[name] = stage.fingerprint
            redo = name in again or any(read in decision.anew for read in trees[name].references)
            stage = (
                stage
                if stage.fingerprint == prints[name]
                else replace(stage, fingerprint=prints[name])
            )
            _go_on(decision, seen, stage, before, redo=redo, named=name in named)
        elif before is None or (name in named and stage.meaning(prints) != before.fingerprint):
            raise StageError(
                f"stage '{name}' cannot be computed: {why}",
                hint="run the cells of the stages it reads first",
                stage=name,
            )
        else:
            prints[name] = before.fingerprint
            decision.catalog[name] = before.stopped(why, seen.epoch)
            decision.status[name] = "stale"
    return decision


def _go_on(
    decision: Decision,
    seen: Snapshot,
    stage: Stage,
    before: Stage | None,
    *,
    redo: bool,
    named: bool,
) -> None:
    """Decides on a stage that can be computed; what it was stays beside it if it is another."""
    name, missing = stage.name, None
    same = before is not None and before.fingerprint == stage.fingerprint
    # What another's stage held is not this one's.
    equal = same and not redo and before is not None and before.signer is None
    if equal and before is not None and not before.live:
        missing = lag.unreadable(seen, before, decision.same)
    status = transition(before, equal=equal, missing=missing, now=seen.epoch)
    if before is not None and status == "changed":
        if missing is not None:
            decision.lost[name] = missing
        if same:
            decision.anew.add(name)
        earlier = _earlier(before, seen)
        decision.catalog[earlier.name] = earlier
        version = before.version + 1
        stage = replace(stage, version=version, begin=seen.epoch, gaps=())
        status = "changed" if named else "followed"
    decision.status[name] = status
    decision.catalog[name] = stage


def _earlier(stage: Stage, seen: Snapshot) -> Stage:
    """A stage as the earlier version that it becomes."""
    node = seen.graph.named[stage.name]
    layout, trace = next(iter(node.traces.items()))
    assert node.log is not None  # it has a name
    return stage.before(Frozen(seen.last(stage), node.log, trace, layout.key))


def halted(stage: Stage, catalog: Mapping[str, Stage]) -> str | None:
    """Why a stage cannot go on: it is not believed, or a function or what it reads is missing."""
    if stage.held is not None:
        return stage.held
    assert stage.definition is not None
    for each in stage.definition.captures:
        if isinstance(each.function, Unknown):
            return f"a function was not restored: {each.function.why}"
    for name in stage.definition.references:
        if catalog[name].reason is not None:
            return f"it reads '{name}', which is stale"
    return None


def ordered(trees: Mapping[str, Definition]) -> dict[str, Definition]:
    """Stages after those they read.

    Raises:
        StageError: if stages depend on each other in a circle.
    """
    result: dict[str, Definition] = {}
    path: dict[str, None] = {}
    for first in trees:
        waiting = [first]
        while waiting:
            name = waiting[-1]
            below = [] if name in result else [n for n in trees[name].references if n in trees]
            if name in path or not any(n not in result for n in below):
                path.pop(name, None)
                result.setdefault(name, trees[name])
                waiting.pop()
                continue
            path[name] = None
            missing = [n for n in below if n not in result]
            circle = next((n for n in missing if n in path), None)
            if circle is not None:
                names = [*path]
                raise StageError(
                    "stages depend on each other: "
                    + " -> ".join([*names[names.index(circle) :], circle]),
                    hint="use iterate for recursion",
                )
            waiting += reversed(missing)
    return result
