"""Replays recorded traffic under the policy in force and under a draft, to see what the draft would have changed.

messages   what is asked, how far a preview is and what came of it: plain data, the same over HTTP and in files
jobs       Previews: starts, shows, cancels; its state is files, so that every process of the service sees the same
work       the process of one preview, with a low priority and a limit of memory
replay     recorded traffic through the simulator: the running policy, the draft, each point of a sweep

A preview changes nothing: it reads the trace store, and what it writes are files of its own in the data directory.
"""
