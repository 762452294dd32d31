"""Transformations of a definition into a cheaper plan with the same result."""
