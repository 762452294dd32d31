"""Aggregates: groups as slots that add up, and value indexes where they do not.

`plan` chooses the slots, value indexes and winners that the aggregates of a stage need; `aggregate`
is the kernel.
"""
