"""Everything in a run that is the same for all methods: local training, rounds, checkpoints, and the simulation."""
