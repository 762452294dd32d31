"""Sealing: what a session signs of what it defines, with the key of its user.

The key is asked for when something is defined, never by opening a log. Without one the catalog is
written unsigned: the session goes on, and after a restart its stages wait for their cells.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from nosync_nb.collections.functions import trust
from nosync_nb.collections.functions.captured import Captured
from nosync_nb.dataflow.graph import Graph, Stage
from nosync_nb.errors import TrustError, warn
from nosync_nb.store import journal, signing

if TYPE_CHECKING:
    from nosync_nb.session.session import Session


class Sealed(NamedTuple):
    """A catalog as it is written, its `signing.digest`, and both as a frame says it."""

    catalog: dict[str, Any]
    digest: bytes
    meta: dict[str, Any]


def sealed(session: Session, catalog: Mapping[str, Stage], graph: Graph, epoch: int) -> Sealed:
    """A catalog as a definition writes it at an epoch: it and its functions signed."""
    _ask_key(session)
    log_id = session._store.log.id
    content = journal.catalog_json(
        catalog,
        graph,
        log_id,
        lambda given, context: _function(session, given, context),
        session._upkeep.pieces,
    )
    digest = signing.digest(content)
    return Sealed(content, digest, {"catalog": content, "signed": session._signed(epoch, digest)})


def _function(session: Session, captured: Captured, context: str) -> str | None:
    """A function as text that is signed for a place; None, with a warning, if it cannot be had."""
    known = captured.sealed
    if known is not None:
        return _moved(session, *known, context)
    if captured.why is not None:
        warn(
            f"{trust.unsealable(captured.function, captured.why)}; identity: this kernel;"
            " after a restart its stage is stale until its cell is run, and until then what it"
            " captures must not change",
            stacklevel=2,
        )
        return None
    if session._key is None:
        return None
    made = trust.seal(
        captured.function,
        key=session._key,
        context=context,
        identity=captured.recognition,
        pickle=captured.pickle,
    )
    return base64.b64encode(made).decode()


def _moved(session: Session, before: str, text: str, after: str) -> str:
    """The text of a function whose stage is called otherwise now; as it was, if it is not ours."""
    try:
        if session._key is None:
            return text
        data = base64.b64decode(text)
        made = trust.moved(data, key=session._key, before=before, after=after)
    except (TrustError, ValueError):
        return text
    return base64.b64encode(made).decode()


def _ask_key(session: Session) -> None:
    """Sees to the key that signs what is defined; warns, once, if there is none to be had."""
    if session._key is not None or session._unsigned:
        return
    try:
        session._key = trust.user_key()
    except TrustError as error:
        session._unsigned = True
        warn(f"{error}; after a restart stages are stale until their cells are run", stacklevel=2)
