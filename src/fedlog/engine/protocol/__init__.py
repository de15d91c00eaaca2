"""The protocol between server and clients: what each side does in a round, and checkpoints of both."""
