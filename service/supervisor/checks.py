"""What is checked before any process starts, so that a mistake ends in one line instead of three dying processes."""

from __future__ import annotations

import errno
import fcntl
import ipaddress
import os
import pathlib
import socket
import stat
import tempfile

from service.settings import Settings
from service.supervisor.errors import DataDirBusy, DataDirUnusable, HostRefused, PortInUse

PRIVATE = 0o700


class DataDirLock:
    """The data directory, held by one server. The lock goes with the process, however it ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the directory back. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def claim_data_dir(settings: Settings) -> DataDirLock:
    """Make the data directory and its private `run` folder, and hold its lock.

    Raises DataDirUnusable or DataDirBusy.
    """
    folder = pathlib.Path(settings.data_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        settings.run_dir.mkdir(mode=PRIVATE, exist_ok=True)
        settings.run_dir.chmod(PRIVATE)
        with tempfile.TemporaryFile(dir=folder):
            pass
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DataDirUnusable(
            f"cannot write to the data directory {folder}: {error.strerror}; choose another with --data-dir"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.read(descriptor, 32).decode("ascii", "replace").strip()
        os.close(descriptor)
        raise DataDirBusy(
            f"another server (pid {holder or 'unknown'}) runs on the data directory {folder}; "
            "stop it, or choose another with --data-dir"
        ) from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return DataDirLock(descriptor)


def make_socket_dir(settings: Settings) -> None:
    """Make the engine's socket folder, readable by this user alone. Raises DataDirUnusable."""
    folder = settings.socket_dir
    try:
        folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise DataDirUnusable(f"cannot make the socket folder {folder}: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise DataDirUnusable(
            f"the socket folder {folder} is not private to this user; remove it, or choose a shorter --data-dir"
        )


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
