"""Run cells in processes on this machine, or on Dask."""
