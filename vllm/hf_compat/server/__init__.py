"""What the server takes and gives: bodies with HF's fields, their limits, and its routes."""
