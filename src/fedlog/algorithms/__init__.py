"""The methods: what a client keeps, what it sends, and what the server does with the sum of what clients send."""
