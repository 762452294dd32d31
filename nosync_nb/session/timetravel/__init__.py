"""Branch, rewind, follow, copy."""
