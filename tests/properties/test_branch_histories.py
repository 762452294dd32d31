"""Random histories of a session and its branches: against a model that keeps everything.

Each step changes one of the logs: epochs, edits of a stage, branches at any epoch, rewinds,
follows, drops, switches, merges, checkpoints, retention, pins, closings, kills and reopenings. The
model keeps the rows of the inputs at every epoch of every log, computes the stages from them, and
knows the readable epochs. Reads of other epochs raise an error. No needed file is missing, and in
the end no unneeded file is left.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from internals import checkpoint_now, drain_background, merge_trace, services_of, traces_of

import nosync_nb
from nosync_nb import Session, TimeError
from nosync_nb.files.filesystem import Files
from nosync_nb.files.safe_names import FOLDERS
from nosync_nb.store import point_in_time
from nosync_nb.store.timetravel import branches

STEPS = int(os.environ.get("NOSYNC_BRANCH_STEPS", "12"))
EXAMPLES = int(os.environ.get("NOSYNC_BRANCH_EXAMPLES", "4"))
LOGS_MAX = 4

PAIRS = st.tuples(st.integers(0, 3), st.integers(0, 5))

Rows = Counter[tuple[int, int]]


class Model:
    """The model of a log: the rows of its input at each epoch, and the rows of its stage."""

    def __init__(self, path: str, epochs: list[Rows], least: int, parent: Model | None) -> None:
        self.path = path
        self.epochs = epochs
        self.least = least
        self.leasts = [least] * len(epochs)  # the bound of each epoch
        self.parent = parent
        self.forked = len(epochs) - 1
        self.followed = self.forked
        self.unknown = self.forked - 1  # the last epoch whose definitions may be unknown
        self.left: set[int] = set()
        self.retain: int | None = None
        self.pins: dict[str, int] = {}
        self.exact = {*range(len(epochs))}  # the epochs that stay readable under any downsampling

    def keep(self) -> None:
        """Epochs before the retained ones may be dropped unless they are pinned."""
        now = len(self.epochs) - 1
        if self.retain is not None:
            least, pinned = now - self.retain + 1, {*self.pins.values()}
            self.exact = {each for each in self.exact if each >= least or each in pinned}

    def take(self, least: int) -> None:
        """Adds an epoch that is computed with a bound."""
        self.exact.add(len(self.epochs) - 1)
        self.keep()
        self.leasts.append(least)
        if len(self.leasts) == 2:
            self.leasts[0] = least

    def then(self, epoch: int) -> int:
        """The bound of an epoch."""
        return self.least if len(self.epochs) == 1 else self.leasts[epoch]

    def grouped(self, epoch: int) -> list[tuple[int, int, int]]:
        """The rows of the stage: count and greatest second column by the first column."""
        groups: dict[int, list[int]] = {}
        for (a, b), count in self.epochs[epoch].items():
            if b >= self.least:
                groups.setdefault(a, []).extend([b] * count)
        return sorted((a, len(each), max(each)) for a, each in groups.items())


class Histories(RuleBasedStateMachine):
    """The logs, open or not, and their models."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(mkdtemp(prefix="nosync-branches-"))
        self.count = 0
        session = nosync_nb.open(self.folder / "log")
        session.input("rows", "a long, b long")
        self.models = {"": Model(str(self.folder / "log"), [Counter()], 0, None)}
        self.open: dict[str, Session] = {"": session}
        self.used: str | None = None
        self.describe(session, 0)

    def describe(self, session: Session, least: int) -> None:
        rows = session["rows"].filter(f"b >= {least}")
        session.stage("groups", rows.group_by("a").agg(n="count(*)", most="max(b)"))

    def any(self, data: st.DataObject) -> tuple[Model, Session]:
        name = data.draw(st.sampled_from(sorted(self.models)), label="log")
        if name not in self.open:
            self.open[name] = nosync_nb.open(self.models[name].path)
        return self.models[name], self.open[name]

    @rule(data=st.data(), more=st.lists(PAIRS, max_size=6))
    def commit(self, data: st.DataObject, more: list[tuple[int, int]]) -> None:
        model, session = self.any(data)
        now = Counter(model.epochs[-1])
        gone = data.draw(st.lists(st.sampled_from(sorted(now.elements()) or [(0, 0)]), max_size=3))
        gone = list((Counter(gone) & now).elements())
        session.inputs["rows"].insert(more)
        session.inputs["rows"].remove(gone)
        now.update(more)
        now.subtract(gone)
        model.epochs.append(+now)
        model.take(model.least)
        assert session.commit() == len(model.epochs) - 1

    @rule(data=st.data(), least=st.integers(0, 4))
    def edit(self, data: st.DataObject, least: int) -> None:
        model, session = self.any(data)
        self.describe(session, least)
        model.least = least

    @precondition(lambda self: len(self.models) < LOGS_MAX)
    @rule(data=st.data(), definitions=st.sampled_from(["now", "then"]))
    def branch(self, data: st.DataObject, definitions: str) -> None:
        model, session = self.any(data)
        at = data.draw(st.sampled_from(sorted(model.exact)), label="at")
        self.count += 1
        name = f"b{self.count}"
        if definitions == "then" and at <= model.unknown:
            self.branch_as_it_may(session, name, at, model)
            return
        least = model.then(at) if definitions == "then" else model.least
        made = session.branch(name, at=at, definitions=definitions)
        self.open[name] = made
        epochs = [Counter(each) for each in model.epochs[: at + 1]]
        child = self.models[name] = Model(made.path, epochs, least, model)
        child.retain, child.exact = model.retain, {each for each in model.exact if each <= at}
        child.pins = {name: each for name, each in model.pins.items() if each <= at}
        assert made.pins == child.pins

    def branch_as_it_may(self, session: Session, name: str, at: int, model: Model) -> None:
        """Branches at an epoch whose definitions may be unknown, or expects the refusal.

        The background worker decides when frames are trimmed, so no later step depends on the
        result: a repeated history must be the same.
        """
        try:
            made = session.branch(name, at=at, definitions="then")
        except TimeError:
            assert name not in session.branches
            return
        assert made.now == at
        assert Counter(tuple(row) for row in made["rows"].rows()) == model.epochs[at]
        made.close()
        session.drop_branch(name)

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        parents = {id(each.parent) for each in self.models.values()}
        leaves = [n for n, each in self.models.items() if n and id(each) not in parents]
        if not leaves:
            return
        name = data.draw(st.sampled_from(sorted(leaves)), label="branch")
        model = self.models.pop(name)
        session = self.open.pop(name, None) or nosync_nb.open(model.path)
        for each in list(session.branches):  # the backup branches of rewinds
            session.drop_branch(each)
        session.close()
        above = next(n for n, each in self.models.items() if each is model.parent)
        if above not in self.open:
            self.open[above] = nosync_nb.open(self.models[above].path)
        self.open[above].drop_branch(name)
        assert not os.path.exists(model.path)
        self.used = None if self.used == self.below(model) else self.used

    @rule(data=st.data())
    def follow(self, data: st.DataObject) -> None:
        model, session = self.any(data)
        parent = model.parent
        if parent is None or parent.left or model.left:
            return
        if not {*range(model.followed, len(parent.epochs))} <= parent.exact:
            return
        above = next(n for n, each in self.models.items() if each is parent)
        if above not in self.open:
            self.open[above] = nosync_nb.open(parent.path)
        for epoch in range(model.followed + 1, len(parent.epochs)):
            now = Counter(model.epochs[-1])
            now.update(parent.epochs[epoch])
            now.subtract(parent.epochs[epoch - 1])
            if any(count < 0 for count in now.values()):
                return  # the parent removed a row that is not here: its count would be -1
            model.epochs.append(+now)
            model.take(model.least)
            model.followed = epoch
            assert session.follow(self.open[above], upto=epoch) == len(model.epochs) - 1

    @rule(data=st.data())
    def rewind(self, data: st.DataObject) -> None:
        model, session = self.any(data)
        to = data.draw(st.sampled_from(sorted(model.exact)), label="to")
        session.rewind(to=to)
        model.exact = {each for each in model.exact if each <= to}
        model.pins = {name: each for name, each in model.pins.items() if each <= to}
        model.left.update(range(to + 1, len(model.epochs)))
        del model.epochs[to + 1 :]
        del model.leasts[to + 1 :]
        model.unknown = min(model.unknown, to)

    @rule(data=st.data(), many=st.sampled_from([None, 1, 3]))
    def retain(self, data: st.DataObject, many: int | None) -> None:
        model, session = self.any(data)
        session.retain = model.retain = many
        model.keep()

    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        model, session = self.any(data)
        at = data.draw(st.sampled_from(sorted(model.exact)), label="pinned")
        self.count += 1
        assert session.pin(at, f"p{self.count}") == at
        model.pins[f"p{self.count}"] = at

    @rule(data=st.data())
    def switch(self, data: st.DataObject) -> None:
        """Records the branch of a notebook, like `%dd switch`."""
        below = [self.below(model) for model in self.models.values() if model.parent is not None]
        self.used = data.draw(st.sampled_from([None, *sorted(below)]), label="switched to")
        branches.set_notebook_branch(Files(), self.models[""].path, self.used)

    def below(self, model: Model) -> str:
        """The name of a branch from the main log: `A/B` is branch B of branch A."""
        names = {id(each): name for name, each in self.models.items()}
        name, above = os.path.basename(model.path), model.parent
        while above is not None and above.parent is not None:
            name, above = f"{names[id(above)]}/{name}", above.parent
        return name

    @rule(data=st.data())
    def merge(self, data: st.DataObject) -> None:
        _, session = self.any(data)
        for number in list(traces_of(session)):
            merge_trace(session, number)

    @rule(data=st.data())
    def verify(self, data: st.DataObject) -> None:
        _, session = self.any(data)
        drain_background(session)
        assert session.verify().whole

    @rule(data=st.data())
    def checkpoint(self, data: st.DataObject) -> None:
        model, session = self.any(data)
        drain_background(session)
        checkpoint_now(session)
        model.unknown = session.now  # frames before it will be trimmed

    @rule(data=st.data())
    def reopen(self, data: st.DataObject) -> None:
        model, session = self.any(data)
        name = next(n for n, each in self.models.items() if each is model)
        session.close()
        self.open[name] = nosync_nb.open(model.path)

    @rule(data=st.data())
    def take_over(self, data: st.DataObject) -> None:
        """Opens as after a crash: the previous session was not closed."""
        model, before = self.any(data)
        name = next(n for n, each in self.models.items() if each is model)
        self.open[name] = nosync_nb.open(model.path, takeover=True)
        before.close()

    @invariant()
    def is_what_the_model_says(self) -> None:
        for name, session in self.open.items():
            model = self.models[name]
            now = len(model.epochs) - 1
            assert session.now == now, name
            assert [tuple(r) for r in session["groups"].rows()] == model.grouped(now), name
            assert session.pins == model.pins, name
            self.reads(name, session, {0, now // 2, max(now - 1, 0), now})
        assert branches.notebook_branch(Files(), self.models[""].path) == self.used

    def reads(self, name: str, session: Session, epochs: set[int]) -> None:
        """Some epochs equal the model, or raise an error if they need not be readable."""
        model = self.models[name]
        for at in epochs:
            hint = ""
            try:
                rows: list[Any] = [tuple(row) for row in session["rows"].rows(at=at)]
            except TimeError as error:
                hint = str(error.hint)
            if hint:
                assert "nearest epochs" in hint, (name, at)
                assert at not in model.exact, (name, at)
                continue
            assert Counter(rows) == model.epochs[at], (name, at)

    def teardown(self) -> None:
        """Compares every epoch of every log, and its files, as after a crash."""
        try:
            for name, model in self.models.items():
                before = self.open.get(name)
                if before is not None:  # its later files would stay until the next opening
                    drain_background(before)
                session = self.open[name] = nosync_nb.open(model.path, takeover=True)
                if before is not None:
                    before.close()
                self.reads(name, session, {*range(len(model.epochs))})
                for _ in range(3):  # the third checkpoint deletes unneeded files
                    session.commit()
                    drain_background(session)
                    checkpoint_now(session)
                self.has_its_files(session)
        finally:
            for session in self.open.values():
                session.close()
            shutil.rmtree(self.folder)

    def has_its_files(self, session: Session) -> None:
        """Every needed file exists, and no other one."""
        assert session.verify().whole
        drain_background(session)
        there = {
            file
            for inner in FOLDERS.values()
            if os.path.isdir(os.path.join(session.path, inner))
            for file in os.listdir(os.path.join(session.path, inner))
        }
        assert there <= services_of(session).publisher.named_files, session.path


@pytest.mark.filterwarnings("ignore:.*before the restart")  # random rows may be equal
@pytest.mark.usefixtures("own_key", "large_from_four_rows")
@pytest.mark.parametrize("kept", [True, False], ids=["frames", "no frames"])
def test_every_epoch_of_every_branch_matches_model(
    kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kept:
        monkeypatch.setattr(point_in_time, "EPOCHS_MAX", -(1 << 40))
    case = Histories.TestCase
    case.settings = settings(
        max_examples=EXAMPLES,
        stateful_step_count=STEPS,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    case("runTest").runTest()
