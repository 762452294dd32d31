"""The former place of `Cached`: users and logs know it."""

from nosync_nb.collections.functions.serializer import Cached

__all__ = ["Cached"]
