"""Who may do what: keys and roles in a file, sessions of browsers, and failed attempts.

Keys are checked against the file by a `KeyRing`; nothing here knows HTTP.
"""
