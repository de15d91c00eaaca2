"""What `import fedlog` offers: run, compare, load, and what they return."""
