"""Store: what survives. The log, its payloads, checkpoints, part files, and reading them again.

Promises: what was appended survives the death of this process, what was synced that of the machine;
a log is data from a stranger until its signature says otherwise. Owns: the log's folder and what is
in it. Imports: dataflow, collections, trace, rows, files, errors.
"""
