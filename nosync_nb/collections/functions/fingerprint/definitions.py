"""Fingerprints of definitions that are data."""

from __future__ import annotations

import hashlib
import json
from typing import Any

DIGEST_BYTES = 8


def definition_fingerprint(definition: Any) -> str:
    """Identifies a JSON value by its canonical text; the order of keys does not matter.

    Returns: 16 hexadecimal digits.

    Raises:
        TypeError: if the value is not JSON; keys must be strings, because 1 and "1" would be equal.
        ValueError: if a number is infinite or NaN.
    """
    _check(definition)
    text = json.dumps(
        definition, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )
    return definition_digest(text.encode())


def definition_digest(data: bytes) -> str:
    """The short hexadecimal digest of all fingerprints."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).hexdigest()


def _check(value: Any) -> None:
    """Raises TypeError for keys that JSON would turn into text."""
    if isinstance(value, dict):
        for key, each in value.items():
            if not isinstance(key, str):
                raise TypeError(f"key {key!r} of a definition is not a string")
            _check(each)
    elif isinstance(value, list | tuple):
        for each in value:
            _check(each)
