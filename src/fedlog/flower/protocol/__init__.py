"""The messages that the server and the sites send each other."""
