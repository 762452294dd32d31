"""Plain models that the engine is compared with."""
