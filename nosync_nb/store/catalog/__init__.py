"""The catalog as stored: validation, signature, epochs, retention."""
