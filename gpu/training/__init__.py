"""Scripts that make the shipped model and draft heads. Nothing that serves imports this package.

gpu/training/README.md has the commands in their order; every seed is an argument with a default.
"""
