"""Parses SQL text to syntax trees, and checks them."""
