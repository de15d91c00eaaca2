"""Where cells run: processes on this machine, or Dask."""
