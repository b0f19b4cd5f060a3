"""What upstream's models are made of: their parts, replaced and watched."""
