"""Verifies who signed a catalog, and exports and imports the key that signs.

A log is data. Its definitions are trusted according to their signature: an HMAC over the whole
catalog, the id of the log and the epoch at which it was written. A catalog that is not signed with
this user's key is read, and nothing in it is run: its stages are *untrusted* until the user's own
cells define them.

An untrusted stage stays untrusted when this user's session writes the catalog again. Such a stage
carries the id of the key that signed its definition, and the new signature does not change that.

Failure: 1. The log of an untrusted writer contains a stage that calls `reflect`. 2. It is opened,
and a commit to an input writes the catalog, signed by the user. 3. At the next opening the user's
own signature covers the catalog, and the stage is compiled. Hence the id in each stage.

Functions are signed one by one as well (`functions.trust`). Rows are not signed.

A log that is moved to another machine without its key is untrusted there. The key file is the
secret itself. It must be handled like a private SSH key, because its holder can run code wherever
the key is trusted.
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
    """The origin of a catalog.

    Attributes:
        signer: the id of the key that signed it. `None` means this user's key and a valid
            signature; "" means that it is not signed.
        why: the reason why nothing in the catalog is run, as text for the user; `None` if it is
            this user's.
    """

    signer: str | None
    why: str | None

    @property
    def is_by_this_user(self) -> bool:
        """True if this user signed the catalog for this log and epoch."""
        return self.signer is None


OWN = CatalogOrigin(None, None)


def digest(catalog: Mapping[str, Any]) -> bytes:
    """Returns the digest of a catalog, which is the same before writing and after reading."""
    return hashlib.sha256(catalog_text(catalog).encode()).digest()


def sign_catalog(key: bytes, log_id: bytes, epoch: int, catalog: bytes) -> list[str]:
    """Returns the signature as it is stored with a catalog: the id of the key, and the HMAC.

    Args:
        catalog: the `digest` of the catalog.
    """
    return [signing.key_id(key), _mac(key, log_id, epoch, catalog)]


def judge_signature(
    key: bytes | None, log_id: bytes, epoch: int, catalog: Mapping[str, Any], signature: Any
) -> CatalogOrigin:
    """Verifies the signature of a catalog, and returns its origin.

    Args:
        key: this user's key, or `None`.
        signature: the value stored with the catalog, of any type.
    """
    signer, mac = _parse(signature)
    if not signer:
        return CatalogOrigin("", f"its definition is unsigned: {_OWN_CELL}")
    if key is None:
        path = signing.key_path()
        return CatalogOrigin(
            signer,
            f"its definition is signed with key {signer}, and '{path}' does not exist: import"
            f" your key with `python -m nosync key import`, or {_OWN_CELL}",
        )
    if signer != signing.key_id(key):
        return CatalogOrigin(signer, is_foreign(signer))
    if not hmac.compare_digest(mac, _mac(key, log_id, epoch, digest(catalog))):
        return CatalogOrigin(
            signer,
            "its definition was modified after it was signed, or comes from another log:"
            f" {_OWN_CELL}",
        )
    return OWN


def own_key_name(key: bytes, log_id: bytes, what: str) -> str:
    """Returns a name in a log's folder that cannot be guessed without the key.

    Therefore only this user can have created a file of that name.
    """
    text = log_id + what.encode()
    return hmac.new(key, _PERSON_OF_NAMES + text, hashlib.sha256).hexdigest()[:32]


def is_foreign(signer: str) -> str:
    """Returns the reason why a stage that is unsigned, or signed with another key, is not run."""
    if not signer:
        return f"its definition is unsigned: {_OWN_CELL}"
    return (
        f"its definition is signed with key {signer}, which is not yours: {_OWN_CELL}, or if"
        " the log is your own import its key with `python -m nosync key import`"
    )


def is_key_id(text: Any) -> bool:
    """Returns True if a value can be the id of a key, or "" for an unsigned catalog."""
    return isinstance(text, str) and (not text or _is_hex(text, 2 * signing.ID_BYTES))


def _parse(signature: Any) -> tuple[str, str]:
    """Returns the id of a key and an HMAC; both are empty if the value is not a signature."""
    if isinstance(signature, Sequence) and len(signature) == 2:
        signer, mac = signature
        if is_key_id(signer) and isinstance(mac, str) and _is_hex(mac, 64):
            return signer, mac
    return "", ""


def _is_hex(text: str, length: int) -> bool:
    return len(text) == length and set(text) <= set("0123456789abcdef")


def _mac(key: bytes, log_id: bytes, epoch: int, catalog: bytes) -> str:
    mac = hmac.new(key, _PERSON, hashlib.sha256)
    mac.update(len(log_id).to_bytes(8, "big") + log_id)
    mac.update(epoch.to_bytes(8, "big") + catalog)
    return mac.hexdigest()


def own_key() -> tuple[bytes | None, str | None]:
    """Returns this user's key, if there is one, and the reason why an existing key cannot be used.

    Never creates a key.
    """
    try:
        return signing.existing_user_key(), None
    except TrustError as error:
        hint = f": {error.hint}" if error.hint else ""
        return None, f"{error}{hint}"


def export_user_key(path: str, files: Files | None = None) -> str:
    """Writes this user's key to a new file that only the user can read; returns the key's id.

    Raises:
        TrustError: there is no key, the file exists already, or it cannot be written.
    """
    disk = files or Files()
    key = signing.existing_user_key(disk)
    if key is None:
        raise TrustError(
            f"there is no key at '{signing.key_path()}'",
            hint="define a stage, which creates the key",
        )
    target = os.path.abspath(path)
    try:
        if disk.exists(target):
            raise TrustError(f"'{path}' exists already", hint="use another file name")
        disk.replace(target, signing.key_text(key))
    except DurabilityError as error:
        raise TrustError(f"the key cannot be exported: {error}", hint=error.hint) from error
    return signing.key_id(key)


def import_user_key(
    path: str, *, replace: bool = False, files: Files | None = None
) -> tuple[str, str]:
    """Imports a file's key as this user's; returns its id, and the path of the saved previous key.

    The path is empty if there was no other key.

    Args:
        replace: if this user has another key, saves that as `key.ID` beside the new one.

    Raises:
        TrustError: the file contains no key, other users can read it, this user has another key and
            `replace` is False, or the key cannot be written.
    """
    disk = files or Files()
    target = signing.key_path()
    try:
        new = signing.read_key(disk, os.path.abspath(path))
        disk.make_folder(os.path.dirname(target))
        old = signing.existing_user_key(disk)
        if old == new:
            return signing.key_id(new), ""
        backup = ""
        if old is not None:
            backup = f"{target}.{signing.key_id(old)}"
            if not replace:
                raise TrustError(
                    f"this user has another key, {signing.key_id(old)}, at '{target}'",
                    hint=f"use --replace to import {signing.key_id(new)}; the other key is saved as"
                    f" '{backup}', and logs that it signed need their cells to be run",
                )
            disk.replace(backup, signing.key_text(old))
        disk.replace(target, signing.key_text(new))
    except DurabilityError as error:
        raise TrustError(f"the key cannot be imported: {error}", hint=error.hint) from error
    return signing.key_id(new), backup
