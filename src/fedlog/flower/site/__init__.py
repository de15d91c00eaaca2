"""What a site does with one message."""
