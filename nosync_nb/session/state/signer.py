"""Signs the catalogs and functions that a session defines, with the key of its user.

A definition reads the key; opening a log never does. Without a key the catalog is written unsigned:
the session continues, and after a restart its stages are stale until their cells run.
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
    """A catalog as it is written, its `signing.digest`, and the metadata of its frame."""

    catalog: dict[str, Any]
    digest: bytes
    meta: dict[str, Any]


class CatalogSigner:
    """Signs what a session defines, and records the origin of the catalog that it read.

    The writer lock guards its state; recovery sets it first.

    Args:
        log_id: id of the log that is signed.

    Attributes:
        origin: origin of the catalog that was last read or written.
        said: the catalog that was last read, with its signature.
    """

    def __init__(self, log_id: bytes) -> None:
        self.origin = signature.OWN
        self.said: WrittenCatalog | None = None
        self._log_id = log_id
        self._key: bytes | None = None
        self._warned = False  # True if the user was warned that there is no key
        self._pieces = payloads.CatalogPieces(log_id, self._signed_function)

    def believe(self, recovered: RecoveredState) -> None:
        """Adopts the catalog of a recovered log, the user's key, and the origin of the catalog."""
        self.said = recovered.said
        self._key, self.origin = recovered.judged

    def signed(self, epoch: int, digest: bytes) -> list[str] | None:
        """Returns the signature of a catalog at an epoch, from its digest; None without a key."""
        return (
            None
            if self._key is None
            else signature.sign_catalog(self._key, self._log_id, epoch, digest)
        )

    def sealed(
        self, catalog: Mapping[str, Stage], graph: Graph, epoch: int, retention: Retention
    ) -> SignedCatalog:
        """Returns a catalog as a definition writes it at an epoch, with its functions signed."""
        self._load_key()
        retained = retention.upto(epoch).to_json()
        content = payloads.catalog_json(catalog, graph, self._pieces, retained)
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

    def _signed_function(self, captured: CapturedFunction, context: str) -> str | None:
        """Returns a function as a signed text for a context.

        Returns None without a key. Warns and returns None if the function cannot be serialised.
        """
        signed = captured.sealed
        if signed is not None:
            return self._resigned_text(*signed, context)
        if captured.why is not None:
            warn(
                f"{signing.refusal_to_load(captured.function, captured.why)}; identity: this"
                " kernel; run the cell of its stage after each restart, and do not change what"
                " it captures until then",
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

    def _resigned_text(self, before: str, text: str, after: str) -> str:
        """Returns the text of a function, signed for the new name of its stage.

        The text is unchanged if another key has signed it.
        """
        try:
            if self._key is None:
                return text
            data = base64.b64decode(text)
            moved = signing.resigned_for_log(data, key=self._key, before=before, after=after)
        except (TrustError, ValueError):
            return text
        return base64.b64encode(moved).decode()

    def _load_key(self) -> None:
        """Reads the key that signs definitions; warns, once, if there is no key."""
        if self._key is not None or self._warned:
            return
        try:
            self._key = signing.user_key()
        except TrustError as error:
            self._warned = True
            warn(
                f"{error}; run the cells of stages after each restart",
                stacklevel=None,
            )
