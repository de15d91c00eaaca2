"""The messages that cross the network, their bytes, and the count of their bits."""
