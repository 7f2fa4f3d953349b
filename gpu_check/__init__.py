"""``make gpu-check``: what the first hour on a GPU should find out (docs/gpu_check.md)."""
