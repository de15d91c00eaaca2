"""The two sides of a round, server and clients, and their checkpoints."""
