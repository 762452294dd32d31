"""Helpers of the notebook's tests: a shell in this process, a kernel, JupyterLab in a browser."""
