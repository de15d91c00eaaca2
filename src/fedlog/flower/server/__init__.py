"""What the server does in a run."""
