"""Attention in the shapes that it has in `generate()`: prompts, and single tokens."""
