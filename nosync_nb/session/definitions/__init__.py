"""Inputs, stages, names, options and retention."""
