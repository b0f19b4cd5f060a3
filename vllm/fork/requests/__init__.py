"""What no engine can take, whatever the flags: token ids, bodies, pictures."""
