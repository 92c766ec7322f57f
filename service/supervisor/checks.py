"""What is checked before any process starts, so that a mistake ends in one line instead of three dying processes."""

from __future__ import annotations

import errno
import ipaddress
import socket

from service.supervisor.errors import HostRefused, PortInUse


def check_host(host: str) -> None:
    """Only this machine's own addresses are served. Raises HostRefused."""
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise HostRefused(
            f"--host {host} would let other machines in, and this version has no credentials yet; "
            "use 127.0.0.1 (behind your own proxy if need be)"
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
