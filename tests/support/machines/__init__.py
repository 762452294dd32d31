"""Processes, servers and networks of tests."""
