"""Training, timing, seeds and checkpoints: algorithms leave all of this to the engine."""
