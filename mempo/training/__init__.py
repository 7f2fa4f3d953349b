"""What knows Lightning: the run, the module, the data module, the supervised start, checkpoints."""
