"""What is written with collections alone: graphs, windows of time, as-of joins."""
