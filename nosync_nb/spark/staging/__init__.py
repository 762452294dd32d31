"""The staging area: files for executors that do not see the log's folder."""
