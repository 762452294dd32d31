"""The table of functions: which call becomes which node."""
