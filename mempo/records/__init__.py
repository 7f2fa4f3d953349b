"""What a run writes and reads back: metrics, trajectory lines, and what they say of its health."""
