"""The catalog as the log stores it: validation, signature, and the index of epochs."""
