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
from nosync_nb.dataflow.compiler import Compiler
from nosync_nb.dataflow.fitting import rebased
from nosync_nb.dataflow.graph import Graph, Stage, frozen_copy
from nosync_nb.dataflow.snapshot import Snapshot
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

    def changes(self, before: Mapping[str, Stage]) -> bool:
        """Whether anything changes for a catalog."""
        return any(
            status != "unchanged" and not (status == "stale" and before[name].reason)
            for name, status in self.status.items()
        )


def kept(catalog: Catalog) -> Decision:
    """That nothing changes for the stages of a catalog."""
    return Decision(catalog, {}, set(), {})


def resumed(seen: Snapshot, types: Types | None, *, extend: bool) -> Decision:
    """Decides which of the stages that have stopped go on after a recovery.

    Args:
        extend: those go on that have missed epochs and can have them; the others need their cells.
    """
    old = {n.name: n.fingerprint for n in seen.graph if n.name}
    compiler = Compiler(Graph(), types)
    made = kept({})
    for name, stage in seen.catalog.items():
        made.catalog[name] = stage
        compiler.fingerprints[name] = old[name]
        if stage.definition is None or stage.frozen or stage.reason is None or not extend:
            continue
        if stage.held is not None:
            continue
        fresh = rebased(replace(stage, reason=None), made.catalog, types)
        if fresh.reason or halted(fresh, made.catalog):
            continue
        same = compiler.stage_fingerprint(fresh) == old[name]
        if same and lag.unreadable(seen, stage, made.catalog) is None:
            options = {k: v for k, v in stage.options.items() if k != "last"}
            made.catalog[name] = replace(fresh, options=options)
            made.status[name] = "extended"
    return made


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
    old = {n.name: n.fingerprint for n in seen.graph if n.name}
    compiler = Compiler(Graph(), types)
    prints = compiler.fingerprints
    made = kept({})
    trees = {
        n: s.definition
        for n, s in catalog.items()
        if s.definition and not s.frozen and s.held is None
    }
    for name in [*(n for n in catalog if n not in trees), *ordered(trees)]:
        stage = catalog[name]
        if name not in trees:
            made.catalog[name] = stage
            prints[name] = old[name]
            continue
        before = seen.catalog.get(name)
        fresh = stage if stage.reason is None else replace(stage, reason=None)
        stage = rebased(fresh, made.catalog, types)
        why = stage.reason or halted(stage, made.catalog)
        if why is None:
            prints[name] = compiler.stage_fingerprint(stage)
            redo = name in again or any(read in made.anew for read in trees_read(stage))
            _live(seen, stage, before, made, old.get(name) == prints[name], redo, name in named)
        else:
            same = before is not None and (
                name not in named or compiler.stage_fingerprint(stage) == old[name]
            )
            if before is None or not same:
                raise StageError(
                    f"stage '{name}' cannot be computed: {why}",
                    hint="run the cells of the stages it reads first",
                    stage=name,
                )
            prints[name] = old[name]
            made.catalog[name] = replace(before, reason=why)
            made.status[name] = "stale"
    return made


def _live(
    seen: Snapshot,
    stage: Stage,
    before: Stage | None,
    made: Decision,
    same: bool,
    redo: bool,
    named: bool,
) -> None:
    """Decides what becomes of a stage that can be computed."""
    name = stage.name
    if same and not redo and stage is before and "last" not in stage.options:
        made.status[name] = "unchanged"
        made.catalog[name] = stage
        return
    options = {k: v for k, v in stage.options.items() if k != "last"}
    if before is None:
        made.status[name] = "new"
        made.catalog[name] = stage
        return
    options.update((k, v) for k, v in before.options.items() if k == "gaps")
    stopped = before.reason is not None
    redo = redo or before.signer is not None  # what another's stage held is not this one's
    if same and not redo:
        status = "unchanged"
        if stopped:
            missed = seen.last(before) < seen.epoch
            status = "extended" if missed else "resumed"
            why = lag.unreadable(seen, before, _as_it_was(made))
            if why is not None:
                made.lost[name] = why
        if name not in made.lost:
            made.status[name] = status
            made.catalog[name] = replace(stage, version=before.version, options=options)
            return
    options.pop("gaps", None)
    if same:
        made.anew.add(name)
    kept = frozen_copy(before, seen.graph.named[name])
    kept.options["last"] = seen.last(before)
    made.catalog[kept.name] = kept
    made.status[name] = "changed" if named else "followed"
    made.catalog[name] = replace(
        stage, version=before.version + 1, begin=seen.epoch, options=options
    )


def _as_it_was(made: Decision) -> Catalog:
    """What goes on as it was."""
    kept = ("unchanged", "resumed", "extended")
    return {n: s for n, s in made.catalog.items() if made.status.get(n, kept[0]) in kept}


def trees_read(stage: Stage) -> tuple[str, ...]:
    """The names a stage reads directly."""
    assert stage.definition is not None
    return stage.definition.references


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
