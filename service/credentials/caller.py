"""Who asks, as a checked credential says it."""

from __future__ import annotations

import dataclasses
import enum


class Role(enum.StrEnum):
    """What a credential is for. None includes another but OPERATOR, which may also read what VIEWER may."""

    CLIENT = "client"
    VIEWER = "viewer"
    OPERATOR = "operator"


@dataclasses.dataclass(frozen=True, slots=True)
class Caller:
    """The credential that a request came with: its name and role."""

    name: str
    role: Role

    @property
    def may_infer(self) -> bool:
        """Whether the inference routes are open to it; people's keys are not for programs."""
        return self.role is Role.CLIENT

    @property
    def may_read(self) -> bool:
        """Whether the control API's and the dashboard's readings are open to it."""
        return self.role in (Role.VIEWER, Role.OPERATOR)

    @property
    def may_change(self) -> bool:
        """Whether it may change the policy, or ask for what costs much."""
        return self.role is Role.OPERATOR


SCOPE_KEY = "helios_caller"
"""Where an ASGI scope holds the Caller; absent where no credentials are asked for."""
