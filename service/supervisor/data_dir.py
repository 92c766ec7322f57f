"""The data directory: made, held by one server, and left as it was found when the server does not start."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import shutil
import stat
import tempfile

from service.settings import Settings
from service.supervisor.errors import DataDirBusy, DataDirUnusable

PRIVATE = 0o700
TRIES = 100


class DataDir:
    """A data directory that this process holds. The lock goes with the process, however it ends."""

    def __init__(self, settings: Settings) -> None:
        """Make the directory and its private `run` folder, and hold its lock.

        Raises DataDirUnusable or DataDirBusy, and then leaves behind nothing that it made.
        """
        self._settings = settings
        self._folder = pathlib.Path(settings.data_dir)
        self._made: list[pathlib.Path] = []
        self._descriptor = -1
        try:
            self._descriptor = self._held_lock()
            self._make(settings.run_dir, PRIVATE)
            settings.run_dir.chmod(PRIVATE)
            with tempfile.TemporaryFile(dir=self._folder):
                pass
        except OSError as error:
            self.undo()
            raise DataDirUnusable(
                f"cannot write to the data directory {self._folder}: {error.strerror}; choose another with --data-dir"
            ) from error

    def make_socket_dir(self) -> None:
        """Make the engine's socket folder, readable by this user alone. Raises DataDirUnusable."""
        folder = self._settings.socket_dir
        try:
            self._make(folder, PRIVATE)
            found = folder.lstat()
        except OSError as error:
            raise DataDirUnusable(f"cannot make the socket folder {folder}: {error.strerror}") from error
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise DataDirUnusable(
                f"the socket folder {folder} is not private to this user; remove it, or choose a shorter --data-dir"
            )

    def release(self) -> None:
        """Give the directory back. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def undo(self) -> None:
        """Remove what this object made, but for a folder that holds something by now, and give the directory back."""
        for path in reversed(self._made):
            with contextlib.suppress(OSError):
                if path == self._settings.run_dir:
                    shutil.rmtree(path)
                elif path.is_dir():
                    path.rmdir()
                else:
                    path.unlink()
        self._made = []
        self.release()

    def _make(self, folder: pathlib.Path, mode: int = 0o777) -> None:
        """The folder and those above it, each noted when it was missing. Raises OSError."""
        for path in (*reversed(folder.parents), folder):
            if not path.is_dir():
                with contextlib.suppress(FileExistsError):
                    path.mkdir(mode if path == folder else 0o777)
                    self._made.append(path)
        if not folder.is_dir():
            raise NotADirectoryError(20, "Not a directory")

    def _held_lock(self) -> int:
        """The lock file, locked and still in its place: a server that did not start may just have removed it."""
        path = self._folder / "lock"
        for _ in range(TRIES):
            self._make(self._folder)
            made = not path.exists()
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                continue
            self._lock(descriptor)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    if made:
                        self._made.append(path)
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
                    return descriptor
            os.close(descriptor)
        raise OSError(0, "it is being removed by others")

    def _lock(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(descriptor, 32).decode("ascii", "replace").strip()
            os.close(descriptor)
            raise DataDirBusy(
                f"another server (pid {holder or 'unknown'}) runs on the data directory {self._folder}; "
                "stop it, or choose another with --data-dir"
            ) from error
