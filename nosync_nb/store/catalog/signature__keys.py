"""Keys on their way: the key that signs this user's logs, to another machine and back.

A log that is moved without its key is a stranger's there. The key file is the secret itself: it
travels like a private SSH key, and whoever has it can have code run wherever it is trusted.
"""

from __future__ import annotations

import os

from nosync_nb.collections.functions import signing
from nosync_nb.errors import DurabilityError, TrustError
from nosync_nb.files.filesystem import Files


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
