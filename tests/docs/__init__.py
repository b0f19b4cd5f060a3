"""Documentation and examples: what they show is run."""
