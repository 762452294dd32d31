"""Access to the disk: only the modules of this package read and write files.

Promises: File names are plain and checked, and are resolved relative to an open folder. No link is
followed, no call blocks on a pipe, and new files are private to their user. A failed write or sync
raises an error that explains it. Owns: open descriptors and memory maps. Imports: errors.
"""
