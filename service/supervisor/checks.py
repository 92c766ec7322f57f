"""What is checked before any process starts, so that a mistake ends in one line instead of three dying processes."""

from __future__ import annotations

import errno
import ipaddress
import pathlib
import socket

from service.credentials.errors import CredentialsUnusable
from service.credentials.files import read_credentials
from service.supervisor.errors import CredentialsRefused, HostRefused, PortInUse


def check_host(host: str, credentials_file: str | None) -> None:
    """Other machines are let in with credentials only. Raises HostRefused and CredentialsRefused."""
    if credentials_file is not None:
        try:
            read_credentials(pathlib.Path(credentials_file))
        except CredentialsUnusable as error:
            raise CredentialsRefused(f"--credentials-file: {error}") from error
        return
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise HostRefused(
            f"--host {host} lets other machines in, which needs --credentials-file FILE; make one with: "
            "helios keys add --credentials-file FILE --name you --role operator"
        )


def check_port(host: str, port: int) -> None:
    """Bind as the service will, and let go. Raises PortInUse or HostRefused."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(f"port {port} on {host} is in use; stop what listens there, or choose --port") from error
        if error.errno == errno.EACCES:
            raise PortInUse(f"port {port} on {host} may not be used by this user; choose --port above 1023") from error
        raise HostRefused(f"cannot listen on {host} port {port}: {error.strerror or error}") from error
