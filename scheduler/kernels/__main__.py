"""`python -m scheduler.kernels`: compiles the kernels now, so that no later start waits for it."""

from scheduler.kernels.loader import load_kernels

if __name__ == "__main__":
    load_kernels()
