"""`python -m service.recorder SETTINGS.json`."""

import sys

from service.process import leave
from service.recorder.process import main

if __name__ == "__main__":
    leave(main(sys.argv[1:]))
