"""Reading back from replicas: lost logs, missing files, repair."""
