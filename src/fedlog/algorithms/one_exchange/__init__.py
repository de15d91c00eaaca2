"""Methods for frozen bodies with a single exchange: clients send sums once, and the server sends a head back."""
