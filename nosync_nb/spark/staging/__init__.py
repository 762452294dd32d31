"""The staging area: transfers files to and from executors that do not see the log's folder."""
