"""From calls on inputs to a published epoch."""
