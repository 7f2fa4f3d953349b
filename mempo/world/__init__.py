"""The generated world: its facts, the words for them, and its tasks."""
