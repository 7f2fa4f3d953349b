"""What the supervised start learns from, and the model that it starts with."""
