"""Runs SQL statements in a session: queries, views, and changes of inputs."""
