"""Plans: what runs instead of the definition, with equal results."""
