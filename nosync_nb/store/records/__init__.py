"""The content of frames and checkpoints, and the files that it references."""
