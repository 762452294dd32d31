"""Aggregates: groups as slots that add up, and traces of values where they do not.

`plans` says which slots, winners and values the aggregates of a stage need; `aggregate` is the
kernel.
"""
