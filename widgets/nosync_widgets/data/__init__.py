"""The data that views draw, as small values and tables."""
