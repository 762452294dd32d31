"""Pure kernels over values, without any handling of nulls."""
