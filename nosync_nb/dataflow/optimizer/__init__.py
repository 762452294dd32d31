"""Plans that run in place of a definition, with equal results."""
