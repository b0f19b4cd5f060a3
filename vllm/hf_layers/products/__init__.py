"""Matrix products of many requests, each with the bits that it has alone."""
