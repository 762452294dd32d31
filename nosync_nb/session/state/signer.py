"""Sealing: what a session signs of what it defines, with the key of its user.

The key is asked for when something is defined, never by opening a log. Without one the catalog is
written unsigned: the session goes on, and after a restart its stages wait for their cells.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, NamedTuple

from nosync_nb.collections.functions import signing
from nosync_nb.collections.functions.closure import CapturedFunction
from nosync_nb.dataflow.graph import Graph
from nosync_nb.dataflow.stage import Stage
from nosync_nb.errors import TrustError, warn
from nosync_nb.store.catalog import signature
from nosync_nb.store.log_reader import RecoveredState, WrittenCatalog
from nosync_nb.store.records import file_references, payloads
from nosync_nb.store.retention_policy import Retention


class SignedCatalog(NamedTuple):
    """A catalog as it is written, its `signing.digest`, and both as a frame says it."""

    catalog: dict[str, Any]
    digest: bytes
    meta: dict[str, Any]


class CatalogSigner:
    """Signs what a session defines; knows whose the catalog is that was there.

    Changed with the gate's lock, and by who opens.

    Args:
        log_id: of the log that is signed.

    Attributes:
        origin: of the catalog as it was last read or written.
        said: the catalog as it was last read, with its signature.
    """

    def __init__(self, log_id: bytes) -> None:
        self.origin = signature.OWN
        self.said: WrittenCatalog | None = None
        self._log_id = log_id
        self._key: bytes | None = None
        self._unsigned = False  # whether it was told that there is no key
        self._pieces = payloads.CatalogPieces(log_id, self._function)

    def believe(self, recovered: RecoveredState) -> None:
        """Takes what a log says, the key that is there already, and what it tells of that."""
        self.said = recovered.said
        self._key, self.origin = recovered.judged

    def signed(self, epoch: int, digest: bytes) -> list[str] | None:
        """The signature of a catalog at an epoch, by its digest; None without a key."""
        return (
            None
            if self._key is None
            else signature.sign_catalog(self._key, self._log_id, epoch, digest)
        )

    def sealed(
        self, catalog: Mapping[str, Stage], graph: Graph, epoch: int, retention: Retention
    ) -> SignedCatalog:
        """A catalog as a definition writes it at an epoch: it and its functions signed."""
        self._ask_key()
        kept = retention.upto(epoch).to_json()
        content = payloads.catalog_json(catalog, graph, self._pieces, kept)
        digest = signature.digest(content)
        meta = {"catalog": content, "signed": self.signed(epoch, digest)}
        return SignedCatalog(
            content,
            digest,
            {
                **meta,
                **file_references.recorded_requirement(
                    file_references.local_numbers(catalog, graph)
                ),
            },
        )

    def _function(self, captured: CapturedFunction, context: str) -> str | None:
        """A function as text that is signed for a place; None, and a warning, if there is none."""
        known = captured.sealed
        if known is not None:
            return self._moved(*known, context)
        if captured.why is not None:
            warn(
                f"{signing.refusal_to_load(captured.function, captured.why)}; identity: this"
                " kernel; after a restart its stage is stale until its cell is run, and until then"
                " what it captures must not change",
                stacklevel=None,
            )
            return None
        if self._key is None:
            return None
        sealed = signing.sign_function(
            captured.function,
            key=self._key,
            context=context,
            identity=captured.recognition,
            pickle=captured.pickle,
        )
        return base64.b64encode(sealed).decode()

    def _moved(self, before: str, text: str, after: str) -> str:
        """The text of a function whose stage is called otherwise now; as it was, if not ours."""
        try:
            if self._key is None:
                return text
            data = base64.b64decode(text)
            moved = signing.resigned_for_log(data, key=self._key, before=before, after=after)
        except (TrustError, ValueError):
            return text
        return base64.b64encode(moved).decode()

    def _ask_key(self) -> None:
        """Sees to the key that signs what is defined; warns, once, if there is none to be had."""
        if self._key is not None or self._unsigned:
            return
        try:
            self._key = signing.user_key()
        except TrustError as error:
            self._unsigned = True
            warn(
                f"{error}; after a restart stages are stale until their cells are run",
                stacklevel=None,
            )
