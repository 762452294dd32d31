"""Network partitions to replica servers: cut, one-way, flapping and slow links."""

from __future__ import annotations

from pathlib import Path

import pytest
from machines.other_host import run

COMMON = """
import atexit, sys
from contextlib import ExitStack
from pathlib import Path
import nosync_nb
from internals import services_of
from machines import network_links
from nosync_nb.errors import DurabilityError

place = Path(sys.argv[1])
network_links.up()
stack = ExitStack()
atexit.register(stack.close)  # also after a failure
servers = [stack.enter_context(network_links.Linked(place / str(i), i)) for i in (1, 2, 3)]
urls = [each.url for each in servers]
session = stack.enter_context(nosync_nb.open(place / "x.nosync", replicas=urls, quorum=2))
numbers = session.input("numbers", "k int, v int")
session.stage("sums", numbers.group_by("k").agg(v="sum(v)"))
replication = services_of(session).replication
WAIT_S = 120

def until(holds):
    with replication.heard:
        assert replication.heard.wait_for(lambda: holds(replication.status()), WAIT_S), (
            replication.status()
        )

def commit(count):
    for _ in range(count):
        numbers.insert([(session.now % 7, session.now)])
        session.commit()
    return session.now

def level():
    until(lambda found: [each.epoch for each in found] == [session.now] * 3)
    assert session.frontiers["sums"].replicas == session.now
    for each in servers:
        copies = [p for p in each.folder.rglob("*") if p.name.startswith("segment-")]
        assert copies
        for path in copies:
            assert (place / "x.nosync" / path.name).read_bytes().startswith(path.read_bytes())

commit(5)
session.sync("replicas", timeout=WAIT_S)
level()
"""

CUT = (
    COMMON
    + """
servers[0].cut()  # two of three are enough
commit(20)
session.sync("replicas", timeout=WAIT_S)
safe = session.now
assert session.frontiers["sums"].replicas == safe
until(lambda found: found[0].state == "failing" and found[0].epoch < safe)

until(lambda found: found[1].epoch == found[2].epoch == safe)
servers[1].cut()  # one is not enough, and commits do not wait
last = commit(20)
until(lambda found: found[2].epoch == last and found[1].state == "failing")
assert session.frontiers["sums"] == (last, session.frontiers["sums"].disk, safe)
try:
    session.sync("replicas", timeout=0.1)
except DurabilityError as error:
    assert "1 of 2 replicas" in str(error), error
else:
    raise AssertionError("safe without a quorum")

servers[1].heal()
servers[2].mute()  # epochs that arrive without an acknowledgement do not count
last = commit(20)
until(lambda found: found[1].epoch == last and found[2].state == "failing")
assert session.frontiers["sums"].replicas < last

for _ in range(5):
    for each in servers:
        each.cut()
        commit(2)
        each.heal()
for each in servers:
    each.heal()
session.sync("replicas", timeout=WAIT_S)
level()
print("epoch", session.now)
"""
)

SLOW = (
    COMMON
    + """
servers[0].slow("8kbit")
numbers.insert([(k, k) for k in range(70_000)])  # the slow link takes minutes for this file
session.commit()
session.sync("replicas", timeout=WAIT_S)
last = commit(20)
until(lambda found: found[1].epoch == found[2].epoch == last)
assert replication.status()[0].epoch < last
assert session.frontiers["sums"].replicas == last
servers[0].hasten()
level()
print("epoch", session.now)
"""
)


@pytest.mark.slow
@pytest.mark.fault(29)
def test_cut_links_make_no_epoch_safe_and_replicas_catch_up_when_healed(tmp_path: Path) -> None:
    assert run("-n", CUT, str(tmp_path), NOSYNC_KEY_FILE=str(tmp_path / "key")) == "epoch 95\n"


@pytest.mark.slow
@pytest.mark.fault(29, 30)
def test_slow_replica_delays_nothing_and_catches_up(tmp_path: Path) -> None:
    assert run("-n", SLOW, str(tmp_path), NOSYNC_KEY_FILE=str(tmp_path / "key")) == "epoch 26\n"
