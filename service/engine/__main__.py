"""`python -m service.engine START.json`."""

import sys

from service.process import guard_child

if __name__ == "__main__":
    guard_child()  # before the imports that take seconds: a supervisor may be killed while they run
    from service.engine.process import exit_now, main

    exit_now(main(sys.argv[1:]))
