"""SQL text to a checked syntax tree."""
