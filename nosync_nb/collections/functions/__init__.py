"""The user's functions: captured, fingerprinted, signed, stored and restored."""
