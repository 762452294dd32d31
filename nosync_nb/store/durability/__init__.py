"""Recovery frontiers and the frames that hold each epoch."""
