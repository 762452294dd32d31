"""Part files: the format for rows on disk, with checksums and validation."""
