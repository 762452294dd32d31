"""Kernels: functions over values that do not handle nulls."""
