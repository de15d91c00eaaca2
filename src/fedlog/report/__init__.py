"""Make tables, plots and pages from the records of runs."""
