"""Operators that add in PyTorch's order, and so have its bits, for many requests at once."""
