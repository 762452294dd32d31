"""Branches a session, rewinds it, follows the parent of a branch, copies a log."""
