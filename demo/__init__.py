"""The demo: the main job told in a terminal, by a real kernel that is killed."""
