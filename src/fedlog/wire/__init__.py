"""What crosses the network: typed messages, their bytes, and the count of their bits."""
