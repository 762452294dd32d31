"""Verification: reads and compares every byte of a log, while its owner continues to use it.

    report       the result: damage, copies, bytes
    file_checks  the verifier of one file: rows, a checkpoint, the frames of a segment
    survey       the current contents of a log, by its checkpoints and frames
    verify       reads all files of a log, and seemingly damaged ones again; lists the files that do
                 not change any more, with a check for each that also applies to a copy

A log is untrusted data: nothing in it is run or unpickled, and decoded values (names, sizes,
digests, epochs) are checked. Verification writes nothing and takes no lock. The owner continues,
and a file that it deletes meanwhile is not reported as damaged.
"""
