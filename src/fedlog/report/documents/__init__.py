"""Tables and pictures that `fedlog docs` writes into the README and into pages of docs/."""
