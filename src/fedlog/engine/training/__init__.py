"""Local training: one client after another (loop), many clients at once (block), or with noisy gradients (DP-SGD)."""
