"""The only place that trains, times, seeds or saves."""
