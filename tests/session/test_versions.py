"""What becomes of a stage: each case of its life, and that nothing of it is edited."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest

from nosync_nb.collections.definition import reference
from nosync_nb.dataflow.stage import Frozen, Options, Stage, Stale
from nosync_nb.rows import Schema
from nosync_nb.session.versions import transition

NUMBERS = Schema.parse("x int")
LIVING = Stage("big", NUMBERS, reference("numbers", NUMBERS), options=Options("local"))
STOPPED = LIVING.stopped("a function was not restored", 4)


@pytest.mark.parametrize(
    ("before", "equal", "missing", "now", "status"),
    [
        (None, False, None, 4, "new"),
        (LIVING, True, None, 4, "unchanged"),
        (LIVING, False, None, 4, "changed"),
        (STOPPED, True, None, 4, "resumed"),
        (STOPPED, True, None, 7, "extended"),
        (STOPPED, True, "'numbers' is not what it was", 7, "changed"),
        (STOPPED, True, "its state was not kept", 4, "changed"),
        (STOPPED, False, None, 7, "changed"),
    ],
)
def test_what_becomes_of_a_stage_that_can_be_computed(
    before: Stage | None, equal: bool, missing: str | None, now: int, status: str
) -> None:
    assert transition(before, equal=equal, missing=missing, now=now) == status


def test_a_stage_that_stops_again_is_stale_since_it_stopped_first() -> None:
    again = STOPPED.stopped("it reads 'numbers', which is stale", 9)
    assert again.life == Stale("it reads 'numbers', which is stale", 4)
    assert (again.last(9), LIVING.last(9)) == (4, 9)
    assert again.resumed() == LIVING


def test_nothing_of_a_stage_is_edited() -> None:
    with pytest.raises(FrozenInstanceError):
        LIVING.life = STOPPED.life  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        LIVING.options.on = "spark"  # type: ignore[misc]


def test_an_input_stays_itself_under_another_name() -> None:
    numbers = Stage("numbers", NUMBERS).identified({})
    renamed = replace(numbers, name="digits")
    assert (renamed.uid, renamed.meaning({})) == ("numbers", numbers.fingerprint)


@pytest.mark.parametrize(
    "stage",
    [
        LIVING,
        STOPPED,
        replace(LIVING, gaps=((1, 3), (5, 6)), signer="another", uid="first"),
        LIVING.before(Frozen(4, 2, 3, (0,))),
    ],
)
def test_a_stage_comes_back_from_json_as_it_was(stage: Stage) -> None:
    assert Stage.from_json(stage.to_json(), stage.definition) == stage
