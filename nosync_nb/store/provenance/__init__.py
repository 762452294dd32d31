"""Provenance: records and checks the input batches of each computed batch."""
