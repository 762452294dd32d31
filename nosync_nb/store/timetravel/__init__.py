"""Time travel: the traces and the catalog of a log at an epoch, and branches."""
