"""Local training: one client after another (the loop), many stacked clients at once (blocks), and DP-SGD."""
