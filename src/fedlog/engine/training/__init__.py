"""Local training: the loop, stacked blocks, and DP-SGD."""
