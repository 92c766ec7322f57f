"""One preview's folder: its state, its result, and whether its process lives. Every process of the service reads it.

state.json     PreviewStatus without its result; replaced whole, so that a reader never sees half of it
result.json    PreviewResult, written before the state says done
process.lock   held by the preview's process for as long as it lives, however it ends
cancel         somebody wants it to end
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import re
import shutil

import msgspec

from scheduler.policy import COEFFICIENT_BY_NAME
from service.control.preview.errors import PreviewsUnusable, UnknownPreview
from service.control.preview.messages import PreviewRequest, PreviewResult, PreviewStatus

STATE, RESULT, LOCK, CANCEL = "state.json", "result.json", "process.lock", "cancel"
PRIVATE = 0o700
LEFT_BEHIND = "Its process ended before it was done: the service was restarted, or memory ran out. Start it again."
_ID = re.compile(r"[0-9a-f]{24}", re.ASCII)
_state_encoder = msgspec.json.Encoder()


class PreviewFolder:
    """The folder of one preview. Raises UnknownPreview for what is no id."""

    def __init__(self, previews: pathlib.Path, preview_id: str) -> None:
        if _ID.fullmatch(preview_id) is None:
            raise UnknownPreview(f"there is no preview {preview_id[:40]!r}")
        self.id = preview_id
        self.path = previews / preview_id

    def read(self) -> PreviewStatus:
        """What is known of it, its result included. Raises UnknownPreview and PreviewsUnusable.

        One that somebody wants to end counts as cancelled, also while its process has not heard of it. One whose
        process has ended without a word has failed.
        """
        status = self._read_state()
        if not status.ended and self.asked_to_end:
            return msgspec.structs.replace(status, state="cancelled", message="Cancelled")
        if not status.ended and not self.lives():
            status = self._read_state()  # it may have ended in between
            if not status.ended:
                return msgspec.structs.replace(status, state="failed", message=LEFT_BEHIND)
        if status.state != "done":
            return status
        try:
            result = msgspec.json.decode((self.path / RESULT).read_bytes(), type=PreviewResult)
        except (OSError, msgspec.MsgspecError, RecursionError) as error:
            raise PreviewsUnusable(f"the result of preview {self.id} cannot be read: {error}") from error
        return msgspec.structs.replace(status, result=result)

    def _read_state(self) -> PreviewStatus:
        try:
            status = msgspec.json.decode((self.path / STATE).read_bytes(), type=PreviewStatus)
        except FileNotFoundError:
            raise UnknownPreview(f"there is no preview {self.id}; the newest 20 are kept") from None
        except (OSError, msgspec.MsgspecError, RecursionError) as error:
            raise PreviewsUnusable(f"the state of preview {self.id} cannot be read: {error}") from error
        if not _is_of_this_version(status.request):
            raise PreviewsUnusable(f"preview {self.id} cannot be read: another version of Helios made it")
        return status

    def write(self, status: PreviewStatus) -> None:
        """Replaces the state. Raises PreviewsUnusable."""
        self._replace(STATE, _state_encoder.encode(msgspec.structs.replace(status, result=None)))

    def write_result(self, result: PreviewResult) -> None:
        """Raises PreviewsUnusable."""
        self._replace(RESULT, msgspec.json.encode(result))

    def _replace(self, name: str, data: bytes) -> None:
        new = self.path / f"{name}.{os.getpid()}.new"
        try:
            new.write_bytes(data)
            new.replace(self.path / name)
        except OSError as error:
            raise PreviewsUnusable(f"cannot write to {self.path}: {error.strerror}") from error

    def lives(self) -> bool:
        """Whether its process lives."""
        try:
            descriptor = os.open(self.path / LOCK, os.O_RDONLY)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def ask_to_end(self) -> None:
        """Its process looks for this. Raises PreviewsUnusable."""
        try:
            (self.path / CANCEL).touch(mode=0o600)
        except OSError as error:
            raise PreviewsUnusable(f"cannot write to {self.path}: {error.strerror}") from error

    @property
    def asked_to_end(self) -> bool:
        """Whether somebody wants it to end."""
        return (self.path / CANCEL).exists()

    def remove(self) -> None:
        """Forgets it. Nothing happens when others did already."""
        shutil.rmtree(self.path, ignore_errors=True)


def preview_ids(previews: pathlib.Path) -> list[str]:
    """Of every kept preview, oldest first."""
    with contextlib.suppress(FileNotFoundError):
        return sorted(path.name for path in previews.iterdir() if _ID.fullmatch(path.name))
    return []


def _is_of_this_version(request: PreviewRequest) -> bool:
    """Whether it names the coefficients that there are: a folder may be older than the program."""
    axes = () if request.sweep is None else request.sweep.axes
    named = {axis.coefficient for axis in axes}
    known = COEFFICIENT_BY_NAME.keys()
    return request.draft.keys() == known and request.running.keys() == known and named <= known
