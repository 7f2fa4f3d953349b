"""Held-out tasks answered and compared: in training, by ``evaluate.py``, and what search finds."""
