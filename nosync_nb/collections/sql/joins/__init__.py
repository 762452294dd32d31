"""Joins: the comparisons of a condition, and how a join of two definitions evaluates them."""
