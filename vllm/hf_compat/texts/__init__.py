"""Where a text ends, and what it says: HF's stopping criteria, and characters of several tokens."""
