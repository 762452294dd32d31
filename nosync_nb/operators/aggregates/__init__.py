"""Aggregates of groups: additive slots, and value indexes for aggregates that are not additive.

`plan` chooses the slots, value indexes and winners for the aggregates of a stage. `aggregate` is
the kernel.
"""
