"""The kinds of replica: a folder, an object store, a Flight server."""
