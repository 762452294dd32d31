"""Recovery frontiers, and the frames that contain each epoch."""
