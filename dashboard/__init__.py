"""The control room: what the scheduler decided, why, and the policy form. Reads the store, speaks to control.

`dashboard.app` has it. Nothing is imported here: the command line takes its words from `formatting` and `sentences`,
and would otherwise load Dash with every call.
"""
