"""`helios serve`: checks what can be checked, starts engine, recorder and service, and keeps them running."""
