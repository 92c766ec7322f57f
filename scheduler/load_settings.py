"""What a load is made of: catalog, policy, and the settings beside them, checked (specification S2, S5, S10)."""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from scheduler.catalog import Catalog
from scheduler.checks import whole
from scheduler.errors import InvalidCatalog, InvalidPolicy, InvalidRequest
from scheduler.policy import PolicyConfig

MAX_REQUEST_SLOTS = 4096
_MOST = 2**31 - 1


def check_catalog(catalog: object) -> None:
    """Raises InvalidCatalog for anything else than a Catalog."""
    if not isinstance(catalog, Catalog):
        raise InvalidCatalog(f"{catalog!r} is no Catalog; make one of the prepared shapes")


def check_policy(policy: object) -> None:
    """Raises InvalidPolicy for anything else than a PolicyConfig, which has checked its coefficients itself."""
    if not isinstance(policy, PolicyConfig):
        raise InvalidPolicy({"policy": f"must be a PolicyConfig, not {policy!r}"})


class LoadSettings(msgspec.Struct, frozen=True):
    """The arguments of RequestScheduler beside catalog and policy. `verification` is checked with the catalog.

    Raises InvalidRequest for a number outside its range.
    """

    request_slots: int
    checkpoint_extra_work_fraction: float
    verification: str
    image_feature_rows: int
    completion_token_capacity: int

    def __post_init__(self) -> None:
        for name, low, high in (
            ("request_slots", 1, MAX_REQUEST_SLOTS),
            ("image_feature_rows", 0, _MOST),
            ("completion_token_capacity", 1, _MOST),
        ):
            if not whole(getattr(self, name), low, high):
                raise InvalidRequest(
                    f"{name} is {getattr(self, name)!r}; it must be a whole number from {low} to {high}"
                )
        fraction: object = self.checkpoint_extra_work_fraction
        number = isinstance(fraction, int | float) and not isinstance(fraction, bool)
        if not number or not 0 <= self.checkpoint_extra_work_fraction <= sys.float_info.max:
            raise InvalidRequest(
                f"checkpoint_extra_work_fraction is {fraction!r}; it must be a finite number of at least 0"
            )
        msgspec.structs.force_setattr(
            self, "checkpoint_extra_work_fraction", float(self.checkpoint_extra_work_fraction)
        )

    def arguments(self) -> tuple[Any, ...]:
        """In the constructor's order."""
        return msgspec.structs.astuple(self)
