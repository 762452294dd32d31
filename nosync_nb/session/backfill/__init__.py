"""Brings stages to the current epoch: plan, execution, background."""
