"""Tables and pictures that `fedlog docs` writes into README.md and into pages of docs/."""
