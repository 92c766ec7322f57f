"""The "decides" side: prepared-graph scheduling as a pure state machine."""
