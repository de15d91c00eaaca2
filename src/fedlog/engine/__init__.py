"""What methods leave to the engine: training, timing, seeds, checkpoints and the simulation of clients."""
