"""`python -m service.recorder SETTINGS.json`."""

import sys

from service.process import guard_child, leave
from service.recorder.priority import give_way

if __name__ == "__main__":
    guard_child()  # before the imports that take seconds: a supervisor may be killed while they run
    give_way()  # and these imports are work of the recorder's, too
    from service.recorder.process import main

    leave(main(sys.argv[1:]))
