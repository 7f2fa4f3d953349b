"""Between the command line and the rooms: composition, checks before a run, the plan."""
