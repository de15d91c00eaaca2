"""The two sides of a round: the server, the clients it hears from, and the checkpoint of both."""
