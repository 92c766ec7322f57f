"""`python -m service.engine START.json`."""

import sys

from service.engine.process import exit_now, main

if __name__ == "__main__":
    exit_now(main(sys.argv[1:]))
