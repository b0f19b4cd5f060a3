"""Weights that change in a running engine."""
