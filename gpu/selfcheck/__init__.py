"""What `helios selfcheck` runs: does this machine compute what the slow, obvious twins compute, and how fast."""
