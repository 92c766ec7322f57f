"""Compiled inner loops. Nothing imports these modules but scheduler.kernels.loader, so that numba is loaded late."""
