"""The views a person opens."""
