"""Explored orders of shipping, takeover and recovery: a crash at every step of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from faults.explored_orders import ACTS, BEHIND, explored, orders
from faults.faults import Phase
from internals import asked_here
from soak import tried

EITHER: tuple[Phase, ...] = ("before", "inside")
USUAL = [("a01T2", EITHER[:1]), ("a0H2", EITHER)]
MORE = [(acts, EITHER) for acts in ("a01T2", "a01H2", "a01T23", "ac0Tb2", "ac0Hb2", "a01Tb23")]


@pytest.mark.slow
@pytest.mark.fault(1, 5, 24, 27, 33)
@pytest.mark.parametrize(("acts", "phases"), tried(USUAL, soak=MORE))
def test_announced_epochs_survive_every_order_and_crash(
    acts: str, phases: Sequence[Phase], record_property: Callable[[str, object], None]
) -> None:
    lives = died = 0
    with asked_here():
        for dead in (dead for order in orders(acts) for dead in explored(order, phases)):
            lives += 1
            died += dead
    record_property("lives", [lives, {f"orders of {acts}, crash by crash": lives}])
    assert died > 0.9 * lives


def test_orders_are_complete_and_distinct() -> None:
    assert list(orders("Ta2")) == ["T2a", "Ta2", "aT2"]
    for acts, count in (("a01T2", 30), ("a01T23", 120), ("a01Tb23", 630)):
        found = list(orders(acts))
        assert len(found) == len(set(found)) == count
        assert all(set(order) == set(acts) <= ACTS.keys() for order in found)
        assert all(
            order.index(first) < order.index(act)
            for order in found
            for act, some in BEHIND.items()
            for first in {*some} & {*order}
            if act in order
        )
