"""What server and sites say to each other."""
