"""Verification: reads and compares every byte of a log, while its owner continues to use it.

    report       the result: damage, copies, bytes
    file_checks  the verifier of one file: rows, a checkpoint, the frames of a segment
    survey       the current contents of a log, by its checkpoints and frames
    verify       reads all of it, and reads again what seems damaged; it lists the files that do
                 not change any more, with the check of each, for any copy

A log is untrusted data: nothing in it is run or unpickled, and decoded values (names, sizes,
digests, epochs) are checked. Verification writes nothing and takes no lock. The owner continues,
and a file that it deletes meanwhile is not reported as damaged.
"""
