"""The server of a run: the gate that sites call at, the rounds, and the server's files."""
