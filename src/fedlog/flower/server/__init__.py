"""The server of a run: the gate that takes the sites' calls, the rounds, and the server's files."""
