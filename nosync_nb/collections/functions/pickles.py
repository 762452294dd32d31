"""The former module of `Cached`: users and logs refer to it."""

from nosync_nb.collections.functions.serializer import Cached

__all__ = ["Cached"]
