"""Claims about speed and memory, each with its script (docs/benchmarks.md)."""
