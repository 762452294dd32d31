"""Computes, repairs and rebuilds the rows of stages up to the current epoch."""
