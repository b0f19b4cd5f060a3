"""What is done to logits: penalties, filters, draws."""
