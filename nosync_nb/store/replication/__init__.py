"""Replicas: copies of a log elsewhere, and how they are brought and kept level with it.

    keeper      a process of its own that ships what is on disk, one thread for each replica;
                `progress`, what it says to its owner, and `proposals`, large merges that he asks
                it for
    shipping    what one replica lacks of a log, and in which order it gets it
    voting      what one replica has of a log, and beyond it
    polling     whether an owner lacks nothing of what replicas hold, before he ships; which of
                them are one
    vouching    what is sent, as far as it proves to be what was written
    source      a log's folder as who ships it reads it
    replica     what every kind of replica can do; `place`: what its URL names
    folder      a replica that is a folder or a mounted volume
    served      a replica at a server: `server`, its process, `copies`, what it keeps, `wire`, what
                both say, and `tokens`, by which they know each other
    objects     a replica in an object store: `account`, the chain of its `records`, whose next
                place one writer gets, and `bucket`, what is asked of the store
    remembered  which replicas this user's logs have, where a lost log cannot say it
    restoring   a log made anew from what replicas hold
    catching    frames that a log's own disk has lost and replicas have, when it is opened
    examining   how much of a copy can be read back
    fetching    the files that are not here: what is read first, then the rest; `supply`: from whom
    bringing    one file of rows that is not here or not whole, from who has it whole
    comparing   what each replica holds, against the log
    mending     a proven copy in the place of a file that is damaged
    scrubbing   both, in the keeper, all the time and slowly
    asking      a call that may hang, for who cannot wait for ever; `patience`, a replica that is
                asked so while a log is opened

Nothing here runs in the thread that commits, and nothing is asked of a replica before an epoch is
committed: a replica is behind the log, by as much as it is slow. What it holds are the same bytes
under the same names, so that each replica can be opened as a log by itself.

IMPORTANT: what a replica acknowledges can be read back from it alone, but for what is owed last
(nosync_nb/store/records/file_references.py), which is had again by running. Hence files go
before the frames that name them, frames before the checkpoint that was made after them, and what a
checkpoint makes useless is dropped only when the checkpoint is on the replica's disk.
"""
