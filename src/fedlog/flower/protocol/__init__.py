"""The messages between server and sites."""
