"""What a finished trajectory is worth: metrics, functions of one's own, a language model."""
