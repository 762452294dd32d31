"""Feeds: watched folders and streams that write inputs."""
