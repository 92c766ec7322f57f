"""`python -m service.journal dump|verify DIRECTORY`."""

import sys

from service.journal.commands import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
