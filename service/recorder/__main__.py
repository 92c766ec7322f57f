"""`python -m service.recorder SETTINGS.json [--again]`."""

import sys

from service.priority import give_way
from service.process import guard_child, leave
from service.recorder.priority import AGAIN

if __name__ == "__main__":
    guard_child()  # before the imports that take seconds: a supervisor may be killed while they run
    again = AGAIN in sys.argv
    if again:
        give_way()  # the server serves already, and these imports are work of the recorder's, too
    from service.recorder.process import main

    if not again:
        give_way()  # a first start is part of the server's own, and nothing is served yet
    leave(main(sys.argv[1:2]))
