"""The server's part of a run."""
