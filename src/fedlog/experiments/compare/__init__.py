"""Compare several methods on one federation: list the runs, execute them, estimate gains and give advice."""
