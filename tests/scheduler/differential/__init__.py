"""The fast scheduler beside the plain reference: the same commands, the same answers, bit for bit.

`python -m tests.scheduler.differential --scenarios 1056 --seed 0 --jobs 2` runs many seeded scenarios.
"""
