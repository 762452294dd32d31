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
from nosync_nb.collections.functions.closure import UnavailableFunction
from nosync_nb.dataflow.graph import other_inputs
from nosync_nb.dataflow.schema_adaptation import adapted_to_schemas, columns_kept
from nosync_nb.dataflow.snapshot import Snapshot
from nosync_nb.dataflow.stage import MEMORY, FrozenState, Stage, StageOptions, StaleState
from nosync_nb.dataflow.state_reader import has_lost_state
from nosync_nb.errors import StageError
from nosync_nb.expressions import Types
from nosync_nb.session.planning import backfill_plan

Catalog = dict[str, Stage]


class DefinitionDecision(NamedTuple):
    """What a definition does.

    Attributes:
        catalog: the new catalog, what is read first.
        status: by stage: new, unchanged, changed, followed (it reads something that changed),
            resumed, extended (it resumed and had missed epochs) or stale.
        lost: stages that resumed and could not be extended, with the reason.
    """

    catalog: Catalog
    status: dict[str, str]
    lost: dict[str, str]

    @property
    def extended(self) -> set[str]:
        """The stages that go on where they stopped, with the epochs that they missed."""
        return {name for name, status in self.status.items() if status == "extended"}

    @property
    def notices(self) -> list[str]:
        """What to tell of stages that stop, or could not go on where they had stopped."""
        lost = [
            f"stage '{name}' had missed epochs and is computed anew, as {why}"
            for name, why in self.lost.items()
        ]
        stale = [name for name, status in self.status.items() if status == "stale"]
        return [*(f"stage '{n}' is stale: {self.catalog[n].reason}" for n in stale), *lost]

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

COMPUTED = ("new", "changed", "followed")
"""What stages are of which all rows are computed now."""


def unchanged_decision(catalog: Catalog) -> DefinitionDecision:
    """That nothing changes for the stages of a catalog."""
    return DefinitionDecision(catalog, {}, {})


def stage_transition(before: Stage | None, *, equal: bool, missing: str | None, now: int) -> str:
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
        case Stage(life=StaleState()) if missing is not None:
            return "changed"
        case Stage(life=StaleState(since=since)):
            return "extended" if since < now else "resumed"
        case _:
            return "unchanged"


def resume_decision(seen: Snapshot, types: Types | None, *, extend: bool) -> DefinitionDecision:
    """Decides which of the stages that have stopped go on after a recovery.

    Args:
        extend: those go on that have missed epochs and can have them; the others need their cells.
    """
    prints = {name: stage.fingerprint for name, stage in seen.catalog.items()}
    decision = unchanged_decision({})
    for name, stage in seen.catalog.items():
        decision.catalog[name] = stage
        if stage.definition is None or stage.reason is None or not extend or stage.held is not None:
            continue
        fresh, why = adapted_to_schemas(stage.resumed(), decision.catalog, types)
        if why or halt_reason(fresh, decision.catalog) or fresh.meaning(prints) != prints[name]:
            continue
        if backfill_plan.catch_up_refusal(seen, stage, decision.catalog) is None:
            decision.catalog[name] = fresh
            decision.status[name] = "extended"
    return decision


def requested_catalog(
    seen: Snapshot,
    trees: Mapping[str, Definition],
    options: StageOptions,
    *,
    again: AbstractSet[str],
) -> Catalog:
    """The catalog with the definitions that are asked for, before it is decided what they change.

    A stage that means what it did stays the same object.

    Args:
        trees: the definitions; what is read of them comes first.
        again: those that are computed anew even if they are equal.
    """
    catalog = dict(seen.catalog)
    other = set(again)
    for name, tree in trees.items():
        old = catalog.get(name)
        given = columns_kept(tree, options)
        if old is None:
            stage = Stage(name, tree.schema, tree, begin=seen.epoch, options=given)
        else:
            own = _demoted(old, tree, given)
            own = own if own.persist else replace(own, persist=old.options.persist)
            if own.nondeterministic and own.persist == MEMORY:
                own = replace(own, persist="")  # what its functions give now is not had again
            stage = replace(
                old,
                schema=tree.schema,
                definition=tree,
                options=own,
                signer=None,
                held=None,
                refuted=None,
            )
            if name not in other and _is_same(old, stage, tree, catalog, other):
                continue
        catalog[name] = stage
        other.add(name)
    return catalog


def _is_same(
    old: Stage, stage: Stage, tree: Definition, catalog: Catalog, other: AbstractSet[str]
) -> bool:
    """Whether a stage goes on as it is, over what goes on as it is, by an equal definition."""
    if not old.live or old.signer is not None or old.held is not None:
        return False
    if stage.schema != old.schema or stage.options != old.options:
        return False
    if not other.isdisjoint(tree.references):
        return False
    if not all(ref.name in catalog and catalog[ref.name].schema == ref.schema for ref in tree.refs):
        return False
    prints = {name: catalog[name].fingerprint for name in tree.references}
    return stage.meaning(prints) == old.fingerprint


def _demoted(old: Stage, tree: Definition, options: StageOptions) -> StageOptions:
    """The options of a stage; one that was found not to be deterministic stays so till its edit."""
    assert old.definition is not None
    if not old.options.demoted or old.signer is not None:
        return options
    names = {name: name for each in (tree, old.definition) for name in each.references}
    if tree.fingerprint(names) != old.definition.fingerprint(names):
        return options
    return replace(options, nondeterministic=True, demoted=True)


def decide(
    seen: Snapshot,
    types: Types | None,
    catalog: Catalog,
    named: AbstractSet[str],
    *,
    again: AbstractSet[str],
) -> DefinitionDecision:
    """Decides what becomes of each stage; what goes on, over what goes on, need not be.

    Args:
        seen: what is there before.
        catalog: with the definitions that are asked for, see `asked`; what is new comes last.
        named: the stages they are asked for.
        again: those of them that are computed anew even if they are equal.

    Raises:
        StageError: if stages read each other in a circle, or something that cannot be computed.

    Cost: in what is asked for and reads it; some 100 ns for each other stage.
    """
    before = seen.catalog
    fresh = other_inputs(catalog, before)
    asked = {*fresh, *again}
    if asked.isdisjoint(before) and seen.graph.goes_on:
        trees = {n: s.definition for n, s in fresh.items() if s.definition}
        decision = unchanged_decision(dict(before))
    else:
        trees = {
            n: s.definition
            for n, s in catalog.items()
            if s.definition and not s.frozen and s.held is None
        }
        decision = unchanged_decision({n: s for n, s in catalog.items() if n not in trees})
    if named - trees.keys():
        decision.status.update((n, KEPT[0]) for n in catalog if n in named and n not in trees)
    moved: set[str] = set()
    for name, tree in _sorted(trees, asked).items():
        stage = catalog[name]
        stays = stage.live or stage.refused  # this one has nothing that could go on
        if name not in asked and stays and moved.isdisjoint(tree.references):
            decision.catalog[name], decision.status[name] = stage, KEPT[0]
            continue
        _decide(decision, seen, types, stage, tree, named=name in named, again=name in again)
        if decision.catalog[name] is not before.get(name):
            moved.add(name)
    return decision


def _decide(
    decision: DefinitionDecision,
    seen: Snapshot,
    types: Types | None,
    asked: Stage,
    tree: Definition,
    *,
    named: bool,
    again: bool,
) -> None:
    """Decides what becomes of one stage; what it reads is decided."""
    name = asked.name
    before = seen.catalog.get(name)
    stage, why = adapted_to_schemas(asked.resumed(), decision.catalog, types)
    why = why or halt_reason(stage, decision.catalog)
    prints = {read: decision.catalog[read].fingerprint for read in tree.references}
    if why is None:
        _go_on(decision, seen, stage.identified(prints), before, prints, again=again, named=named)
    elif before is None or (named and stage.meaning(prints) != before.fingerprint):
        raise StageError(
            f"stage '{name}' cannot be computed: {why}",
            hint="run the cells of the stages it reads first",
            stage=name,
        )
    else:
        decision.catalog[name] = before.stopped(why, seen.epoch)
        decision.status[name] = "stale"


def _go_on(
    decision: DefinitionDecision,
    seen: Snapshot,
    stage: Stage,
    before: Stage | None,
    prints: Mapping[str, str],
    *,
    again: bool,
    named: bool,
) -> None:
    """Decides on a stage that can be computed; what it was stays beside it if it is another.

    Args:
        prints: the meanings of what it reads, by name.
    """
    name, missing = stage.name, None
    same = before is not None and before.fingerprint == stage.fingerprint
    # What another's stage held is not this one's.
    equal = same and not again and before is not None and before.signer is None
    if equal and before is not None and not before.live:
        missing = backfill_plan.catch_up_refusal(seen, before, decision.same)
    status = stage_transition(before, equal=equal, missing=missing, now=seen.epoch)
    if before is not None and status == "changed":
        if missing is not None:
            decision.lost[name] = missing
        earlier = _earlier(before, seen)
        decision.catalog[earlier.name] = earlier
        version = before.version + 1
        stage = replace(
            stage, version=version, begin=seen.epoch, gaps=(), refuted=None, scaled=None
        )
        status = "changed" if named else "followed"
    if status in COMPUTED and (same or stage.options.nondeterministic):
        stage = _separated(stage, decision.catalog, prints, seen.graph.numbers + 1)
    decision.status[name] = status
    decision.catalog[name] = stage


def _separated(stage: Stage, catalog: Catalog, prints: Mapping[str, str], first: int) -> Stage:
    """A stage that shares nothing with those of before, as its rows may be other than theirs.

    It is computed again, or its functions give another result each time. The rows of others do not
    change, as nobody asked for it; so they keep the parts that they have and it gets its own.
    Those of one call are computed together, and share; but two stages that are equal to a letter
    are two, and hold each what they were given.

    Args:
        first: a number that tells it from all of before: of each stage that is computed the graph
            gives at least two, so the next call has a greater one.
    """
    taken = {each.fingerprint for name, each in catalog.items() if name != stage.name}
    numbers = range(first, first + len(taken) + 1)
    stages = (replace(stage, apart=number).identified(prints) for number in numbers)
    return next(each for each in stages if each.fingerprint not in taken)


def _earlier(stage: Stage, seen: Snapshot) -> Stage:
    """A stage as the earlier version that it becomes."""
    node = seen.graph.named[stage.name]
    layout, trace = next(iter(node.traces.items()))
    assert node.log is not None  # it has a name
    return stage.before(FrozenState(seen.last(stage), node.log, trace, layout.key))


def halt_reason(stage: Stage, catalog: Mapping[str, Stage]) -> str | None:
    """Why a stage cannot go on: it is not believed, or a function or what it reads is missing."""
    if stage.held is not None:
        return stage.held
    assert stage.definition is not None
    for each in stage.definition.captures:
        if isinstance(each.function, UnavailableFunction):
            return f"a function was not restored: {each.function.why}"
    for name in stage.definition.references:
        read = catalog[name]
        if read.reason is not None:
            return f"it reads '{name}', which is stale"
        if read.held is not None:
            return f"it reads '{name}', which is lost"
        if isinstance(read.life, FrozenState) and has_lost_state(read, read.life.since):
            return f"it reads '{name}', which was in memory alone and is gone"
    return None


def _sorted(trees: Mapping[str, Definition], asked: AbstractSet[str]) -> Mapping[str, Definition]:
    """Stages after those they read; all but those that are asked for stand so."""
    place = {name: i for i, name in enumerate(trees)}
    for name in [name for name in trees if name in asked]:
        if any(place.get(read, -1) >= place[name] for read in trees[name].references):
            return topological_order(trees)
    return trees


def topological_order(trees: Mapping[str, Definition]) -> dict[str, Definition]:
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
