"""The kinds of replica, in a folder, an object store or a Flight server."""
