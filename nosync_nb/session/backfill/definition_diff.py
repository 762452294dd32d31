"""Decides what a definition changes. Pure: reads and writes nothing.

If the fingerprints are equal, nothing changes. Otherwise the stage gets a new version, the old one
stays readable as `name@version`, and its readers follow by name.

A stage cannot follow if a column or a function that it uses is missing, or if it reads such a
stage. It is then *stale*: it stops and keeps its last epoch. As soon as nothing is missing it
resumes there and runs the epochs that it missed. If its inputs can no longer be read at that epoch,
it becomes a new version that is computed at the current epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import NamedTuple

from nosync_nb.collections.definition import Definition
from nosync_nb.collections.equivalence import is_equivalent
from nosync_nb.collections.functions.closure import UnavailableFunction
from nosync_nb.dataflow.graph import UNMADE, changed_items
from nosync_nb.dataflow.schema_adaptation import adapted_to_schemas, columns_kept
from nosync_nb.dataflow.snapshot import Snapshot, has_lost_state
from nosync_nb.dataflow.stage import MEMORY, FrozenState, Stage, StageOptions, StaleState
from nosync_nb.errors import StageError
from nosync_nb.expressions import Types
from nosync_nb.session.backfill.plan import span_of

Catalog = dict[str, Stage]


class DefinitionDecision(NamedTuple):
    """The effect of a definition.

    Attributes:
        catalog: the new catalog, inputs before their readers.
        status: the status of each stage: new, unchanged, changed, followed (it reads a stage that
            changed), resumed, extended (it resumed and catches up missed epochs) or stale.
        lost: the stages that are recomputed because they cannot catch up, with the reason.
    """

    catalog: Catalog
    status: dict[str, str]
    lost: dict[str, str]

    @property
    def extended(self) -> set[str]:
        """The stages that resume at their last epoch and catch up the epochs that they missed."""
        return {name for name, status in self.status.items() if status == "extended"}

    @property
    def notices(self) -> list[str]:
        """The messages about stages that stop, or that could not be caught up."""
        lost = [
            f"stage '{name}' had missed epochs and is recomputed, because {why}"
            for name, why in self.lost.items()
        ]
        stale = [name for name, status in self.status.items() if status == "stale"]
        return [*(f"stage '{n}' is stale: {self.catalog[n].reason}" for n in stale), *lost]

    @property
    def same(self) -> Catalog:
        """The stages that keep their version, their rows and their state."""
        return {n: s for n, s in self.catalog.items() if self.status.get(n, KEPT[0]) in KEPT}

    def changes(self, before: Mapping[str, Stage]) -> bool:
        """Returns True if the decision changes a catalog. A stage that was stale does not count."""
        return any(
            status != "unchanged" and not (status == "stale" and before[name].reason)
            for name, status in self.status.items()
        )


KEPT = ("unchanged", "resumed", "extended")
"""The statuses under which a stage keeps its version, its rows and its state."""

COMPUTED = ("new", "changed", "followed")
"""The statuses under which all rows of a stage are computed now."""


def unchanged_decision(catalog: Catalog) -> DefinitionDecision:
    """Returns a decision that changes no stage of a catalog."""
    return DefinitionDecision(catalog, {}, {})


def stage_transition(before: Stage | None, *, equal: bool, missing: str | None, now: int) -> str:
    """Returns the status of a stage that can be computed.

    Args:
        before: the stage in the previous catalog; None if it is new.
        equal: True if its previous results may be reused.
        missing: the reason why the epochs that it missed cannot be run; None if they can.
        now: the current epoch.
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


def resume_decision(snapshot: Snapshot, types: Types | None) -> DefinitionDecision:
    """Decides which stopped stages resume after a recovery.

    Stages resume if the epochs that they missed can be run. Others stay stale until their cells
    run.
    """
    prints = {name: stage.fingerprint for name, stage in snapshot.catalog.items()}
    decision = unchanged_decision({})
    for name, stage in snapshot.catalog.items():
        decision.catalog[name] = stage
        if stage.definition is None or stage.reason is None or stage.held is not None:
            continue
        fresh, why = adapted_to_schemas(stage.resumed(), decision.catalog, types)
        if (
            why
            or halt_reason(fresh, decision.catalog)
            or fresh.current_fingerprint(prints) != prints[name]
        ):
            continue
        if catch_up_refusal(snapshot, stage, decision.catalog) is None:
            decision.catalog[name] = fresh
            decision.status[name] = "extended"
    return decision


def catch_up_refusal(snapshot: Snapshot, stage: Stage, same: Mapping[str, Stage]) -> str | None:
    """Returns why a stage cannot be caught up from its last epoch; None if it can.

    Args:
        same: the stages in the catalog that are unchanged.
    """
    assert stage.definition is not None
    graph, last = snapshot.graph, snapshot.last(stage)
    node = graph.named[stage.name]
    if node.operator is None:
        return "its state was not stored"
    parts = [part for part in span_of(graph, {node.id}).graph if part.name in (None, stage.name)]
    if any(part.plan == UNMADE for part in parts):
        return "its state was not stored"
    if any(p.operator and p.operator.memoises and p.stopped != last for p in parts):
        return "it shares memoised results with a stage that continued"
    if stage.is_distrusted:
        return "its rows are not trusted"
    if has_lost_state(stage, last):
        return "it was in memory only"
    for name in stage.definition.references:
        if name not in same:
            return f"'{name}' has changed"
        log = graph.named[name].log
        assert log is not None
        if not any(last in epochs for epochs in snapshot.history.epochs(log, snapshot.epoch)):
            return f"'{name}' is no longer readable at epoch {last}"
    return None


def requested_catalog(
    snapshot: Snapshot,
    trees: Mapping[str, Definition],
    options: StageOptions,
    *,
    again: AbstractSet[str],
) -> Catalog:
    """Returns the catalog with the requested definitions, before their effect is decided.

    A stage with an unchanged meaning stays the same object.

    Args:
        trees: the definitions, inputs before their readers.
        again: stages that are recomputed even if they are equal.
    """
    catalog = dict(snapshot.catalog)
    changed = set(again)
    for name, tree in trees.items():
        old = catalog.get(name)
        requested = columns_kept(tree, options)
        if old is None:
            stage = Stage(name, tree.schema, tree, begin=snapshot.epoch, options=requested)
        else:
            kept_options = _demoted_options(old, tree, requested)
            kept_options = (
                kept_options
                if kept_options.persist
                else replace(kept_options, persist=old.options.persist)
            )
            if kept_options.nondeterministic and kept_options.persist == MEMORY:
                kept_options = replace(kept_options, persist="")  # its results cannot be recomputed
            stage = replace(
                old,
                schema=tree.schema,
                definition=tree,
                options=kept_options,
                signer=None,
                held=None,
                refuted=None,
            )
            if name not in changed and _is_same(old, stage, tree, catalog, changed):
                continue
        catalog[name] = stage
        changed.add(name)
    return catalog


def _is_same(
    old: Stage, stage: Stage, tree: Definition, catalog: Catalog, changed: AbstractSet[str]
) -> bool:
    """Returns True if a stage continues unchanged: an equal definition over unchanged inputs."""
    if not old.live or old.signer is not None or old.held is not None:
        return False
    if stage.schema != old.schema or stage.options != old.options:
        return False
    if not changed.isdisjoint(tree.references):
        return False
    if not all(ref.name in catalog and catalog[ref.name].schema == ref.schema for ref in tree.refs):
        return False
    prints = {name: catalog[name].fingerprint for name in tree.references}
    if stage.current_fingerprint(prints) == old.fingerprint:
        return True
    if old.definition is None or {*old.definition.references} != prints.keys():
        return False
    if old.current_fingerprint(prints) != old.fingerprint:
        return False
    return is_equivalent(old.definition, tree, prints)


def _demoted_options(old: Stage, tree: Definition, options: StageOptions) -> StageOptions:
    """Returns the options of a stage that is defined again.

    A stage that was demoted as nondeterministic remains so until its definition is edited.
    """
    assert old.definition is not None
    if not old.options.demoted or old.signer is not None:
        return options
    names = {name: name for each in (tree, old.definition) for name in each.references}
    if not is_equivalent(tree, old.definition, names):
        return options
    return replace(options, nondeterministic=True, demoted=True)


def decide(
    snapshot: Snapshot,
    types: Types | None,
    catalog: Catalog,
    named: AbstractSet[str],
    *,
    again: AbstractSet[str],
) -> DefinitionDecision:
    """Decides the status of each stage; an unchanged stage over unchanged inputs is not visited.

    Args:
        snapshot: the current snapshot.
        catalog: the catalog with the requested definitions, see `requested_catalog`; new stages
            come last.
        named: the stages whose definitions are requested.
        again: the requested stages that are recomputed even if they are equal.

    Raises:
        StageError: if stages read each other in a circle, or if a requested stage cannot be
            computed.

    Cost: proportional to the requested stages and their readers, plus about 100 ns for each other
    stage.
    """
    before = snapshot.catalog
    fresh = changed_items(catalog, before)
    asked = {*fresh, *again}
    if asked.isdisjoint(before) and snapshot.graph.goes_on:
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
    for name, tree in _inputs_first(trees, asked).items():
        stage = catalog[name]
        stays = stage.live or stage.is_distrusted  # a refused stage has no state to resume from
        if name not in asked and stays and moved.isdisjoint(tree.references):
            decision.catalog[name], decision.status[name] = stage, KEPT[0]
            continue
        _decide_stage(
            decision, snapshot, types, stage, tree, named=name in named, again=name in again
        )
        if decision.catalog[name] is not before.get(name):
            moved.add(name)
    return decision


def _decide_stage(
    decision: DefinitionDecision,
    snapshot: Snapshot,
    types: Types | None,
    asked: Stage,
    tree: Definition,
    *,
    named: bool,
    again: bool,
) -> None:
    """Decides the status of one stage, after the statuses of its inputs."""
    name = asked.name
    before = snapshot.catalog.get(name)
    stage, why = adapted_to_schemas(asked.resumed(), decision.catalog, types)
    why = why or halt_reason(stage, decision.catalog)
    prints = {read: decision.catalog[read].fingerprint for read in tree.references}
    if why is None:
        _decide_computable(
            decision, snapshot, stage.identified(prints), before, prints, again=again, named=named
        )
    elif before is None or (named and stage.current_fingerprint(prints) != before.fingerprint):
        raise StageError(
            f"stage '{name}' cannot be computed: {why}",
            hint="run the cells of the stages it reads first",
            stage=name,
        )
    else:
        decision.catalog[name] = before.as_stale(why, snapshot.epoch)
        decision.status[name] = "stale"


def _decide_computable(
    decision: DefinitionDecision,
    snapshot: Snapshot,
    stage: Stage,
    before: Stage | None,
    prints: Mapping[str, str],
    *,
    again: bool,
    named: bool,
) -> None:
    """Decides the status of a stage that can be computed.

    If the stage changes, the catalog also retains its previous version.

    Args:
        prints: the fingerprints of its inputs, by name.
    """
    name, missing = stage.name, None
    same = before is not None and before.fingerprint == stage.fingerprint
    # The rows of a stage that another key signed are not reused.
    equal = same and not again and before is not None and before.signer is None
    if equal and before is not None and not before.live:
        missing = catch_up_refusal(snapshot, before, decision.same)
    status = stage_transition(before, equal=equal, missing=missing, now=snapshot.epoch)
    if before is not None and status == "changed":
        if missing is not None:
            decision.lost[name] = missing
        earlier = _previous_version(before, snapshot)
        decision.catalog[earlier.name] = earlier
        version = before.version + 1
        stage = replace(
            stage, version=version, begin=snapshot.epoch, gaps=(), refuted=None, scaled=None
        )
        status = "changed" if named else "followed"
    if status in COMPUTED and (same or stage.options.nondeterministic):
        stage = _with_own_nodes(stage, decision.catalog, prints, snapshot.graph.numbers + 1)
    decision.status[name] = status
    decision.catalog[name] = stage


def _with_own_nodes(stage: Stage, catalog: Catalog, prints: Mapping[str, str], first: int) -> Stage:
    """Returns a stage that shares no node with previous stages, whose rows may differ from its own.

    The stage is recomputed, or its functions are nondeterministic. The rows of other stages must
    not change, so they keep their nodes and this stage gets its own. Stages of one call are
    computed together and may share nodes. But two stages with equal definitions are separate, and
    each has its own results.

    Args:
        first: a number that no previous stage has used. The graph allocates at least two numbers
            for each computed stage, so the next call passes a greater number.
    """
    taken = {each.fingerprint for name, each in catalog.items() if name != stage.name}
    numbers = range(first, first + len(taken) + 1)
    stages = (replace(stage, apart=number).identified(prints) for number in numbers)
    return next(each for each in stages if each.fingerprint not in taken)


def _previous_version(stage: Stage, snapshot: Snapshot) -> Stage:
    """Returns the frozen previous version that a stage becomes when it is replaced."""
    node = snapshot.graph.named[stage.name]
    layout, trace = next(iter(node.traces.items()))
    assert node.log is not None  # it has a name
    return stage.as_earlier_version(FrozenState(snapshot.last(stage), node.log, trace, layout.key))


def halt_reason(stage: Stage, catalog: Mapping[str, Stage]) -> str | None:
    """Returns why a stage cannot run: it is untrusted, or a function or an input is missing."""
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
            return f"it reads '{name}', which was in memory only and is lost"
    return None


def _inputs_first(
    trees: Mapping[str, Definition], asked: AbstractSet[str]
) -> Mapping[str, Definition]:
    """Returns the stages ordered so that each comes after its inputs.

    Only the requested stages are checked, because all others are in order.
    """
    position = {name: i for i, name in enumerate(trees)}
    for name in [name for name in trees if name in asked]:
        if any(position.get(read, -1) >= position[name] for read in trees[name].references):
            return topological_order(trees)
    return trees


def topological_order(trees: Mapping[str, Definition]) -> dict[str, Definition]:
    """Returns the stages ordered so that each comes after its inputs.

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
                    hint="use iterate() for recursion",
                )
            waiting += reversed(missing)
    return result
