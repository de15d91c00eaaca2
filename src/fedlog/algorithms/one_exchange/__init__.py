"""Methods for frozen bodies: one upload of sums, one head back, and that is the whole training."""
