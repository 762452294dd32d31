"""Copies of a log on other disks or machines, and how they are kept up to date.

    protocol          the operations of every kind of replica; the fencing grant, by which a copy
                      accepts the writes of only one owner term
    address           the URL of a replica
    endpoints         the site that a URL names
    config            the replicas and the quorum of a log, signed; the registry of the replicas of
                      this user's logs, for logs whose folder is lost
    file_layout       the path of a file within the folder of a log
    consistency       the part of a copy that can be read back
    comparison        the comparison of each replica's files with the log
    remote_call       calls that are abandoned after a timeout
    remote_branches   the branches that replicas hold; dropping the copies of a log
    agent             the keeper, a separate process: it ships, scrubs, merges, counts votes
    backends          a replica in a folder, at a Flight server, in an object store
    restore           the recovery of a lost log, of lost frames, and of missing or damaged files

Nothing here runs in the thread that commits. No replica is asked before an epoch is committed, so a
slow replica lags behind the log. A replica holds the same bytes under the same names as the log, so
that each replica can be opened as a log by itself.

IMPORTANT: the log up to a frame that a replica acknowledged can be read back from that replica
alone. Exempt are local files (nosync_nb/store/records/file_references.py), because their stages can
be recomputed. Hence files are shipped before the frames that name them, and frames before the
checkpoint that follows them. Files that a checkpoint makes obsolete are deleted only when that
checkpoint is on the replica's disk.
"""
