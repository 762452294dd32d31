"""The durable part of a session: the log, its payloads, checkpoints, part files, and recovery.

Promises: an appended frame survives the death of this process, a synced frame that of the machine.
A log is untrusted data until its signature proves otherwise. Owns: the folder of the log and all
files in it. Imports: dataflow, collections, trace, rows, files, errors.
"""
