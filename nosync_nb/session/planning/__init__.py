"""Pure decisions: what a definition changes, and how stages are repaired, replayed and caught up."""
