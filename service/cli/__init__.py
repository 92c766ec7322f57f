"""The `helios` command."""

from service.cli.tree import main

__all__ = ["main"]
