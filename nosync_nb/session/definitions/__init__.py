"""Stages and inputs: defined, changed, renamed, signed."""
