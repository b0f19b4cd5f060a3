"""What the fork adds to vLLM independently of one feature: its flags and its start-up repairs."""
