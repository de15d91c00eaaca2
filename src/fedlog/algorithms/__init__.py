"""One page per method: what a client keeps, what it sends, and what the server does with the sum."""
