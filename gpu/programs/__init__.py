"""Prepared programs: fixed-shape callables over static buffers, run eagerly on a CPU."""
