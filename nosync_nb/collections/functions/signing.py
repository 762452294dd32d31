"""Signs the user's functions in the log; an unsigned function is never loaded.

A log may come from anywhere: a colleague, a replica, a download. Loading a pickle runs the code in
it. So each function is stored with a signature. The signing key is not in the log, but in the
user's home folder. Without the key all data can be read, but a stage with functions is stale until
the user runs its cell.

The package `fingerprint` decides if a function is unchanged. Callers store the signed bytes.

Layout: magic number, key id, HMAC-SHA256, then the signed part: a JSON header and the pickle. The
HMAC also covers the context, such as the fingerprint of the definition. So a function cannot be
moved to another stage.

Failure: 1. A notebook calls a helper of a module beside it. 2. The kernel dies and the module is
edited. 3. The log's function is loaded and calls the new helper, yet its data continues that of the
old one. Hence the user's own modules are stored by value and installed packages by version: the
code that runs again is the code that was identified.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from nosync_nb.collections.functions import closure
from nosync_nb.collections.functions.fingerprint import (
    FunctionIdentity,
    code_version,
    function_fingerprint,
)
from nosync_nb.errors import DurabilityError, StageError, TrustError
from nosync_nb.files import secret_files
from nosync_nb.files.filesystem import Files

Function = Callable[..., Any]

_MAGIC = b"NSF1"
ID_BYTES = 8
_MAC_BYTES = 32
_REMEDY = "set NOSYNC_KEY_FILE to a file of yours"
_RUN_CELL = "run the stage's cell"


def key_path() -> str:
    """Returns the path of the user's key file.

    It is NOSYNC_KEY_FILE if that is set. Otherwise it is below XDG_DATA_HOME, by default
    `~/.local/share`. A relative XDG_DATA_HOME is ignored, as its standard requires, because the key
    would be in the working folder.
    """
    path = os.path.expanduser(os.environ.get("NOSYNC_KEY_FILE") or "")
    if not path:
        data = os.environ.get("XDG_DATA_HOME") or ""
        if not os.path.isabs(data):
            data = os.path.expanduser(os.path.join("~", ".local", "share"))
        path = os.path.join(data, "nosync", "key")
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(folder), name)  # because the user may link folders


def user_key(files: Files | None = None) -> bytes:
    """Returns the user's key; creates it if it does not exist.

    If several processes call this at the same time, they get the same key.

    Raises:
        TrustError: if other users can read the key, it belongs to another user, it is damaged, or
            it cannot be created.
    """
    files = files or Files()
    path = key_path()
    try:
        if not files.exists(path):
            secret_files.create_secret_file(files, path, "key", _REMEDY)
        secret_files.check_folder(files, os.path.dirname(path), "key", _REMEDY)
        return read_key(files, path)
    except DurabilityError as error:
        if error.errno == errno.ENOMEM:  # the key exists, and the next call can read it
            raise
        raise _key_error(error) from error


def existing_user_key(files: Files | None = None) -> bytes | None:
    """Returns the user's key; None if it does not exist.

    Raises:
        TrustError: under the conditions of `user_key`.
    """
    files = files or Files()
    path = key_path()
    try:
        if not files.exists(path):
            return None
        secret_files.check_folder(files, os.path.dirname(path), "key", _REMEDY)
        return read_key(files, path)
    except DurabilityError as error:
        if error.errno == errno.ENOMEM:  # the key exists, and the next call can read it
            raise
        raise _key_error(error) from error


def _key_error(error: DurabilityError) -> TrustError:
    """Returns the error for a key that cannot be read or created."""
    return TrustError(
        f"the key of this user is not available: {error}",
        hint="set NOSYNC_KEY_FILE to a file of yours; until then run the cells of stages after each"
        " restart",
    )


def key_text(key: bytes) -> bytes:
    """Returns the content of a key file."""
    return secret_files.secret_text(key)


def read_key(files: Files, path: str) -> bytes:
    """Reads a key file.

    Raises:
        TrustError: if other users can read the file, or it contains no valid key.
    """
    return secret_files.read_secret(
        files, path, "key", "delete it, and a new one is created; then " + _RUN_CELL
    )


def sign_function(
    function: Function,
    *,
    key: bytes,
    context: str = "",
    identity: FunctionIdentity | None = None,
    pickle: bytes | None = None,
) -> bytes:
    """Returns the signed bytes of a function.

    Args:
        key: the user's key, see `user_key`.
        context: the context of the function; `load_signed_function` requires the same context.
        identity: the identity of the function, if the caller has it already.
        pickle: the serialised function, if the caller has it already.

    Raises:
        StageError: if the function has no fingerprint or cannot be pickled, so that no log can
            store it.
    """
    identity = identity or function_fingerprint(function)
    if identity.fingerprint is None:
        raise refusal_to_load(function, identity.reason or "its code has no fingerprint")
    try:
        payload = pickle or closure.serialize_function(function, identity.modules)
    except Exception as error:
        raise refusal_to_load(function, f"{type(error).__name__}: {error}") from error
    header = json.dumps(
        {**_environment(), "packages": identity.versions, "fingerprint": identity.fingerprint}
    ).encode()
    signed = len(header).to_bytes(4, "big") + header + payload
    return _MAGIC + _key_id(key) + _mac(key, context, signed) + signed


def load_signed_function(
    data: bytes, *, key: bytes, context: str = "", fingerprint: str | None = None
) -> Function:
    """Verifies the signature of a function, and loads it if versions match.

    Args:
        fingerprint: the expected fingerprint; `None` means any fingerprint.

    Raises:
        TrustError: if the bytes were not signed with this key for this context, are damaged, or
            have another fingerprint. Also if they were stored with another minor version of Python,
            or another version of cloudpickle or of a package that the function uses. In these cases
            nothing has been loaded. Also if loading fails.
    """
    signed = _verified_part(data, key, context)
    size = int.from_bytes(signed[:4], "big")
    header = json.loads(signed[4 : 4 + size])
    if fingerprint is not None and header["fingerprint"] != fingerprint:
        raise TrustError(
            "a function of the log has another fingerprint than its stage", hint=_RUN_CELL
        )
    _check_environment(header)

    try:
        function = closure.deserialize_function(signed[4 + size :])
    except Exception as error:
        raise TrustError(
            f"a function of the log cannot be loaded: {type(error).__name__}: {error}",
            hint=_RUN_CELL,
        ) from error
    assert callable(function)
    return function


def resigned_for_log(data: bytes, *, key: bytes, before: str, after: str) -> bytes:
    """Returns signed bytes with a signature for another context, without loading the function.

    Args:
        before: the context of the present signature.
        after: the context of the new signature.

    Raises:
        TrustError: if the bytes are not signed with this key for the context `before`.
    """
    signed = _verified_part(data, key, before)
    return _MAGIC + _key_id(key) + _mac(key, after, signed) + signed


def _verified_part(data: bytes, key: bytes, context: str) -> bytes:
    """Returns the signed part; raises TrustError if the signature is not valid."""
    start = len(_MAGIC) + ID_BYTES + _MAC_BYTES
    if data[: len(_MAGIC)] != _MAGIC or len(data) < start + 4:
        raise TrustError("these bytes are not a signed function", hint=_RUN_CELL)
    signed = data[start:]
    sealed_by = data[len(_MAGIC) : len(_MAGIC) + ID_BYTES]
    given = data[len(_MAGIC) + ID_BYTES : start]
    if not hmac.compare_digest(_mac(key, context, signed), given):
        if not hmac.compare_digest(sealed_by, _key_id(key)):
            raise TrustError("a function of the log was signed with another key", hint=_RUN_CELL)
        raise TrustError("a function of the log does not match its signature", hint=_RUN_CELL)
    return signed


def _mac(key: bytes, context: str, signed: bytes) -> bytes:
    """Returns the HMAC of a signed part in a context."""
    made = hmac.new(key, _MAGIC, hashlib.sha256)
    about = context.encode()
    made.update(len(about).to_bytes(8, "big") + about)
    made.update(signed)
    return made.digest()


def key_id(key: bytes) -> str:
    """Returns an identifier of a key, which does not reveal the key; for messages and catalogs."""
    return _key_id(key).hex()


def _key_id(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=ID_BYTES, person=b"nosync key id").digest()


def _environment() -> dict[str, str]:
    """Returns the versions of Python and cloudpickle, on which every pickle depends."""
    import cloudpickle

    return {
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "cloudpickle": str(cloudpickle.__version__),
    }


def _check_environment(header: dict[str, Any]) -> None:
    """Raises TrustError if a function was stored with other versions than the installed ones."""
    for name, here in _environment().items():
        _check_version(name, header[name], here)
    for name, there in header["packages"].items():
        _check_version(name, there, code_version(name))


def _check_version(name: str, there: str, here: str | None) -> None:
    """Raises TrustError if the version of a component is not the one stored with a function."""
    if there != here:
        present = f"this is {here}" if here else "it is not installed"
        raise TrustError(
            f"a function of the log was stored with {name} {there}, {present}",
            hint=f"{_RUN_CELL}, or install {name} {there}",
        )


def refusal_to_load(function: Function, reason: str) -> StageError:
    """Returns the error for a function that no log can store."""
    name = getattr(function, "__name__", type(function).__name__)
    return StageError(
        f"function '{name}' cannot be stored: {reason}",
        hint="use plain values, or create the objects inside the function",
    )
