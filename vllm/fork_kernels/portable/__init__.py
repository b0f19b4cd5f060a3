"""Operators whose bits are specified, in docs/numerics, and the same on every machine."""
