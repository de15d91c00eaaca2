"""Data sets, and how they are divided among clients."""

from fedlog.data.data_spec import DataSpec as DataSpec
