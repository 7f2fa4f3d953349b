"""Trajectories of a teacher as a file for the supervised start (docs/cold_start.md)."""
