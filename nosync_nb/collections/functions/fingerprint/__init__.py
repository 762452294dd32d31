"""Fingerprints: short texts that identify a computation and are equal in every kernel.

A stage is unchanged after a restart if its fingerprint equals the one in the log. Operators,
expressions and schemas are data (`definition_fingerprint`). Functions of the user are code with
captured values (`function_fingerprint`). Their pickles and marshalled code are not used, because
these differ after every restart and whenever a line moves.

A fingerprint does not show that a function is deterministic. Signatures are in `signing`.
"""

from nosync_nb.collections.functions.fingerprint.canonical_values import (
    LRU_CACHED,
    definition_fingerprint,
)
from nosync_nb.collections.functions.fingerprint.code import FunctionIdentity, function_fingerprint
from nosync_nb.collections.functions.fingerprint.code_origin import code_version, library_identity

__all__ = [
    "LRU_CACHED",
    "FunctionIdentity",
    "code_version",
    "definition_fingerprint",
    "function_fingerprint",
    "library_identity",
]
