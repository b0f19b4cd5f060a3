"""The processes of an engine: their cores, what they send each other, and their end."""
