"""Run experiments: single runs, the tables of the paper, many runs in parallel, and comparisons of methods."""
