"""Several methods side by side on one federation: what to run, what came out, and what to advise."""
