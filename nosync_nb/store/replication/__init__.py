"""Copies of a log on other disks or machines, and how they are kept up to date.

    protocol          what every kind of replica can do; the record by which a copy accepts only
                      one owner term
    address           a replica's URL; `endpoints`: the site that it names
    config            the replicas and the quorum of a log, signed; the registry of the replicas of
                      this user's logs, for logs whose folder is lost
    file_layout       where a file of a log lies in its folder
    consistency       how much of a copy can be read back
    comparison        what each replica holds, compared with the log
    remote_call       a call that is abandoned after a timeout
    remote_branches   the branches that replicas hold; dropping the copies of a log
    agent             the keeper, a separate process: it ships, scrubs, merges, counts votes
    backends          a replica in a folder, at a Flight server, in an object store
    restore           a lost log, lost frames, missing or damaged files, read from replicas

Nothing here runs in the thread that commits. No replica is asked before an epoch is committed, so a
replica lags behind the log if it is slow. It holds the same bytes under the same names, so that
each replica can be opened as a log by itself.

IMPORTANT: the log up to a frame that a replica acknowledged can be read back from that replica
alone. Exempt are local files (nosync_nb/store/records/file_references.py), because their stages can
be recomputed. Hence files are shipped before the frames that name them, and frames before the
checkpoint that follows them. Files that a checkpoint makes obsolete are deleted only when that
checkpoint is on the replica's disk.
"""
