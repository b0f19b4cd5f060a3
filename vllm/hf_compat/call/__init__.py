"""What is asked for: a call of `generate()`, its configuration, and the request made of them."""
