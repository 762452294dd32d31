"""The staging area for executors that do not see the log's folder."""
