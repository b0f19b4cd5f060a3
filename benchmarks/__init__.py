"""One script a question; each prints a table and, with --json, writes its figures."""
