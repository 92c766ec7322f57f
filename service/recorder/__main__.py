"""`python -m service.recorder SETTINGS.json`."""

import sys

from service.recorder.process import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
