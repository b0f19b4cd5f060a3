"""Operators on logits: seen tokens and their penalty, and draws with a generator for each row."""
