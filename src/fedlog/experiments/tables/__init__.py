"""Define the experiments behind the paper's tables and figures, read their runs, and compute statistics over them."""
