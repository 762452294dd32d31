"""Pure decisions: what a definition changes, and how stages are repaired or caught up."""
