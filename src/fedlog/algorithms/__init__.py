"""One page per method: what stays at home, what is sent, what the server does with the sum."""
