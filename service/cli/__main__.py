"""`python -m service.cli`: the `helios` command where it is not on the PATH."""

from service.cli.tree import main

main(prog_name="helios")
