"""What a site does in a run: it answers the server's messages one by one, and keeps its state on disk."""
