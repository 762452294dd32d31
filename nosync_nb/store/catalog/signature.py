"""Signing: whose key a catalog was signed with, and what becomes of one that is not this user's.

A log is data. What it says that stages compute is believed as far as the signature goes: an HMAC
over the whole catalog, the log it stands in and the epoch it was written at. A catalog that this
user's key has not signed so is read, and nothing of it is run: its stages are *held* until the
user's own cells define them.

What is held stays held when this user's session writes the catalog again: such a stage carries the
id of the key that described it, and our signature says no more than that.

Failure: 1. A stranger's log holds a stage that calls `reflect`. 2. It is opened, and an input is
committed to, which writes the catalog, signed by the user. 3. At the next opening the catalog is
the user's own, and the stage is compiled. Hence the id in each stage.

Not here: functions, which are signed one by one as well (`trust`); rows, which nobody signs.

A log that is moved without its key is a stranger's there. The key file is the secret itself: it
travels like a private SSH key, and whoever has it can have code run wherever it is trusted.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nosync_nb.collections.functions import signing
from nosync_nb.errors import DurabilityError, TrustError
from nosync_nb.files.filesystem import Files
from nosync_nb.store.records.json_text import catalog_text

_PERSON = b"nosync catalog 1"
_PERSON_OF_NAMES = b"nosync names 1"
_OWN_CELL = "run the stage's cell"


class CatalogOrigin(NamedTuple):
    """Where a catalog comes from.

    Attributes:
        signer: the id of the key that signed it; None: this user's, and it holds; "" if nobody's.
        why: why nothing of it is run, in words; None if it is this user's.
    """

    signer: str | None
    why: str | None

    @property
    def own(self) -> bool:
        """Whether this user signed it, here and at its epoch."""
        return self.signer is None


OWN = CatalogOrigin(None, None)


def digest(catalog: Mapping[str, Any]) -> bytes:
    """Identifies a catalog, before it was written and after it was read."""
    return hashlib.sha256(catalog_text(catalog).encode()).digest()


def sign_catalog(key: bytes, log_id: bytes, epoch: int, catalog: bytes) -> list[str]:
    """The signature as it stands beside a catalog: the id of the key, and the HMAC.

    Args:
        catalog: its `digest`.
    """
    return [signing.key_id(key), _mac(key, log_id, epoch, catalog)]


def judge_signature(
    key: bytes | None,
    log_id: bytes,
    epoch: int,
    catalog: Mapping[str, Any],
    signature: Any,
) -> CatalogOrigin:
    """Whose catalog it is.

    Args:
        key: this user's; None if there is none.
        signature: what stood beside the catalog, whatever it is.
    """
    signer, mac = _parts(signature)
    if not signer:
        return CatalogOrigin("", f"nobody signed what it computes: {_OWN_CELL}")
    if key is None:
        there = signing.key_path()
        return CatalogOrigin(
            signer,
            f"key {signer} signed what it computes, and '{there}' is not there: bring your key"
            f" with `python -m nosync key import`, or {_OWN_CELL}",
        )
    if signer != signing.key_id(key):
        return CatalogOrigin(signer, is_foreign(signer))
    if not hmac.compare_digest(mac, _mac(key, log_id, epoch, digest(catalog))):
        return CatalogOrigin(
            signer, f"what it computes was changed after it was signed, or moved: {_OWN_CELL}"
        )
    return OWN


def own_key_name(key: bytes, log_id: bytes, what: str) -> str:
    """A name in a log's folder that nobody finds who has not the key: what stands there is ours."""
    text = log_id + what.encode()
    return hmac.new(key, _PERSON_OF_NAMES + text, hashlib.sha256).hexdigest()[:32]


def is_foreign(signer: str) -> str:
    """Why a stage that another key described is not run."""
    if not signer:
        return f"nobody signed what it computes: {_OWN_CELL}"
    return (
        f"key {signer} signed what it computes, which is not yours: {_OWN_CELL}, or if the log is"
        " your own bring its key with `python -m nosync key import`"
    )


def is_key_id(text: Any) -> bool:
    """Whether a value can be the id of a key, or says that there was none."""
    return isinstance(text, str) and (not text or _hex(text, 2 * signing.ID_BYTES))


def _parts(signature: Any) -> tuple[str, str]:
    """The id of a key and an HMAC; empty if it is no signature."""
    if isinstance(signature, Sequence) and len(signature) == 2:
        signer, mac = signature
        if is_key_id(signer) and isinstance(mac, str) and _hex(mac, 64):
            return signer, mac
    return "", ""


def _hex(text: str, length: int) -> bool:
    return len(text) == length and set(text) <= set("0123456789abcdef")


def _mac(key: bytes, log_id: bytes, epoch: int, catalog: bytes) -> str:
    made = hmac.new(key, _PERSON, hashlib.sha256)
    made.update(len(log_id).to_bytes(8, "big") + log_id)
    made.update(epoch.to_bytes(8, "big") + catalog)
    return made.hexdigest()


def own_key() -> tuple[bytes | None, str | None]:
    """This user's key if it is there, and why it cannot be used if it is not fit; makes none."""
    try:
        return signing.existing_user_key(), None
    except TrustError as error:
        hint = f": {error.hint}" if error.hint else ""
        return None, f"{error}{hint}"


def export_user_key(path: str, files: Files | None = None) -> str:
    """Writes this user's key to a new file that only he can read; returns the key's id.

    Raises:
        TrustError: if there is no key, the file is there already, or it cannot be written.
    """
    disk = files or Files()
    key = signing.existing_user_key(disk)
    if key is None:
        raise TrustError(
            f"there is no key at '{signing.key_path()}'", hint="the first definition makes it"
        )
    where = os.path.abspath(path)
    try:
        if disk.exists(where):
            raise TrustError(f"'{path}' is there already", hint="name another file")
        disk.replace(where, signing.key_text(key))
    except DurabilityError as error:
        raise TrustError(f"the key cannot be exported: {error}") from error
    return signing.key_id(key)


def import_user_key(
    path: str, *, replace: bool = False, files: Files | None = None
) -> tuple[str, str]:
    """Makes the key in a file this user's; returns its id, and where the one before is kept.

    Args:
        replace: if this user has another key, keeps that as `key.ID` beside the new one.

    Raises:
        TrustError: if the file holds no key, others may read it, this user has another key and
            `replace` is not given, or it cannot be written.
    """
    disk = files or Files()
    where = signing.key_path()
    try:
        new = signing.read_key(disk, os.path.abspath(path))
        disk.make_folder(os.path.dirname(where))
        old = signing.existing_user_key(disk)
        if old == new:
            return signing.key_id(new), ""
        kept = ""
        if old is not None:
            kept = f"{where}.{signing.key_id(old)}"
            if not replace:
                raise TrustError(
                    f"this user has another key, {signing.key_id(old)}, at '{where}'",
                    hint=f"--replace takes {signing.key_id(new)} and keeps the other as '{kept}';"
                    " logs that it signed wait for their cells then",
                )
            disk.replace(kept, signing.key_text(old))
        disk.replace(where, signing.key_text(new))
    except DurabilityError as error:
        raise TrustError(f"the key cannot be imported: {error}") from error
    return signing.key_id(new), kept
