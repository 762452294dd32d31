"""Secret files: 32 random bytes or more that only their user can read.

A file that other users can read or replace is not a secret. It is refused, never repaired.
"""

from __future__ import annotations

import os
import secrets
import stat

from nosync_nb.errors import TrustError
from nosync_nb.files.filesystem import Files

BYTES = 32
_LOCK_WAIT_S = 10.0


def secret_text(secret: bytes) -> bytes:
    """Returns the content of a file that stores a secret: its hexadecimal digits and a newline."""
    return secret.hex().encode() + b"\n"


def create_secret_file(files: Files, path: str, what: str, remedy: str) -> None:
    """Writes a new secret, unless the file already exists.

    Args:
        what: the name of the secret in messages.
        remedy: how the user can choose another file; part of the hint of an error.
    """
    folder = os.path.dirname(path)
    files.make_folder(folder)
    check_folder(files, folder, what, remedy)
    lock = files.lock(f"{path}.lock", wait_s=_LOCK_WAIT_S)
    if lock is None:
        raise TrustError(f"another process holds '{path}.lock'", hint=f"end it, or {remedy}")
    try:
        if not files.exists(path):
            files.replace(path, secret_text(secrets.token_bytes(BYTES)))
    finally:
        lock.release()


def check_folder(files: Files, folder: str, what: str, remedy: str) -> None:
    """Raises TrustError if other users could replace the user's secret in a folder."""
    status = files.status(folder)
    others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    # In a sticky folder users cannot replace the files of other users.
    if others and not status.st_mode & stat.S_ISVTX:
        raise TrustError(
            f"the {what}'s folder '{folder}' has mode {stat.S_IMODE(status.st_mode):04o}: other"
            f" users can replace the {what}",
            hint=f"chmod 700 '{folder}', or {remedy}",
        )
    if status.st_uid not in (os.getuid(), 0):
        raise TrustError(
            f"the {what}'s folder '{folder}' belongs to user {status.st_uid}, not to {os.getuid()}",
            hint=remedy,
        )


def check_secret_file(files: Files, path: str, what: str) -> None:
    """Checks that a path is a plain file of this user that other users cannot read.

    Raises:
        TrustError: it is not; the message names the problem.
    """
    status = files.status(path)
    if not stat.S_ISREG(status.st_mode):
        raise TrustError(
            f"{what} '{path}' is not a plain file", hint="remove it and the file that it links to"
        )
    if status.st_uid != os.getuid():
        raise TrustError(
            f"{what} '{path}' belongs to user {status.st_uid}, not to {os.getuid()}",
            hint="remove it, or use a file of yours",
        )
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise TrustError(
            f"{what} '{path}' has mode {stat.S_IMODE(status.st_mode):04o}: other users can read it",
            hint=f"chmod 600 '{path}'; delete it if another user may have copied it",
        )


def decode_secret(written: bytes) -> bytes:
    """Returns the secret from the content of its file; empty if the content is invalid."""
    try:
        secret = bytes.fromhex(written.decode("ascii"))
    except ValueError:
        return b""
    return secret if len(secret) >= BYTES else b""


def read_secret(files: Files, path: str, what: str, remedy: str) -> bytes:
    """Reads a secret that only its user can read.

    Raises:
        TrustError: the file fails `check_secret_file`, or its content is invalid.
    """
    check_secret_file(files, path, what)
    secret = decode_secret(files.read(path))
    if not secret:
        raise TrustError(f"{what} '{path}' is damaged", hint=remedy)
    return secret
