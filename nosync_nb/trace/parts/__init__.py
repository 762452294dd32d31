"""Part files: rows on disk, their checksums and bounds."""
