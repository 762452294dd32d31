"""The content of frames and checkpoints, and which files it refers to."""
