"""Mathematics only: the exponential family, its statistics, its exact MAP head, and keys for randomness."""
