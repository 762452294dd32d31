"""The peers of the measurements: each runs the same changes, and prints one line of JSON."""
