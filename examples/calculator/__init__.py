"""A tool of one's own (docs/extending.md)."""
