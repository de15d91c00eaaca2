"""The functions behind `import fedlog`: run, compare, load, and their results."""
