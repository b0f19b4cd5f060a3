"""What a request has to keep for its receipt (`vllm.receipts` issues it)."""
