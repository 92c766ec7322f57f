"""Why a server cannot start. Each message is one line that says what to do; `helios serve` exits 2 with it.

StartRefused
├── DataDirUnusable     the data directory cannot be made or written
├── DataDirBusy         another server runs on the data directory
├── HostRefused         an address that is not this machine's own without credentials, or that does not exist
├── CredentialsRefused  the credentials' file cannot be used
├── PortInUse           something listens on the port already, or the port may not be used
├── StoreRefused        the database is corrupt, newer than this program or out of reach
├── PolicyRefused       a policy flag with a value that is not allowed
└── ModelRefused        no such model, or its files are damaged
"""

from __future__ import annotations


class StartRefused(Exception):
    """Base of everything that keeps a server from starting."""


class DataDirUnusable(StartRefused):
    """The data directory cannot be made or written."""


class DataDirBusy(StartRefused):
    """Another server runs on the data directory."""


class HostRefused(StartRefused):
    """The address would open the server to other machines, or does not exist."""


class CredentialsRefused(StartRefused):
    """The credentials' file cannot be used."""


class PortInUse(StartRefused):
    """The port cannot be bound."""


class StoreRefused(StartRefused):
    """The database cannot be used."""


class PolicyRefused(StartRefused):
    """A policy flag has a value that is not allowed."""


class ModelRefused(StartRefused):
    """The model cannot be used."""
