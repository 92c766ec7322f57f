"""A preview's process that does nothing until it is killed; the service's end kills it."""

from __future__ import annotations

import signal

from service.process import guard_child

if __name__ == "__main__":
    guard_child()
    signal.pause()
