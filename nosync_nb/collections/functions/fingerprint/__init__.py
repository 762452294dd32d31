"""Identifies the computation of a definition by a short text that is equal in every kernel.

A stage is "unchanged" after a restart if its fingerprint equals the one in the log. Operators,
expressions and schemas are data (`definition_fingerprint`); functions of the user are code with
captured values (`function_fingerprint`). Pickles and marshalled code differ at every restart and
with every moved line, so neither is used.

Signatures are in `signing`. No module checks that a function is deterministic.
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
