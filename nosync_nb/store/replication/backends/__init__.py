"""One kind of replica each: folder, object store, Flight server."""
