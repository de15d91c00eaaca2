"""Pages of a run, of a deployed run and of a folder of runs, also while they are under way."""
