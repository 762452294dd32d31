"""Decisions without effects: what a definition changes, how stages catch up."""
