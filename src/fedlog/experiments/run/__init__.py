"""Execute one run, and write and read the files of its folder."""
