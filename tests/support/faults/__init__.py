"""Disks, clocks and threads that fail on command."""
