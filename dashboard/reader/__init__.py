"""The process that reads for the dashboard: pages, figures and their JSON are made there, not beside streams.

`reader` starts it and asks it, `process` is what it does, `messages` what the two say to each other.
"""
