"""The one way in which building the distribution fails: with a sentence for the user."""

from __future__ import annotations


class DistributionError(Exception):
    """One sentence that says what is wrong and what to do; nothing was left half-done."""
