"""Files: the only room that touches the disk.

Promises: plain checked names, relative to an open folder; no link is followed, nothing hangs, what
is made is private; a failing write or sync is an error with what it means. Owns: descriptors and
mappings. Imports: errors.
"""
