"""The table of functions: a rule for each function, which turns a call into a node."""
