"""docs/contracts.md and the code name the same Python names of the scheduler and the same span attributes."""

from __future__ import annotations

import enum
import inspect
import re
import types
import typing
from collections.abc import Iterator

import msgspec
import pytest

import scheduler
from scheduler import Catalog, GraphKind, GraphShape, PolicyConfig, RequestScheduler, errors
from service.api.control_spans import CALL_ATTRIBUTES
from service.control.policy import PROPOSAL_ATTRIBUTES, PROPOSAL_SPAN
from service.journal.records import (
    PlanCommitted,
    PlanCompleted,
    PolicyApplied,
    RequestAdmitted,
    RequestArrived,
    RequestOptions,
)
from service.journal.records import RequestFinished as Finished
from service.telemetry import otlp

CATALOG = Catalog([GraphShape(GraphKind.DECODE, 1)])
INSTANCES = {"Catalog": CATALOG, "RequestScheduler": RequestScheduler(CATALOG, PolicyConfig())}
HEX = {"trace_id": "0a" * 16, "parent_span_id": "0b" * 8}


@pytest.fixture(scope="module")
def entries(root) -> dict[str, dict[str, str]]:
    """Section to its bullets: the first code span, and the rest on one line."""
    text = (root / "docs" / "contracts.md").read_text(encoding="utf-8")
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    return {
        name: {
            first: " ".join(rest.split())
            for first, rest in re.findall(r"^- `([^`]+)`((?:.|\n  )*)", body.replace("\n  ", " "), flags=re.MULTILINE)
        }
        for name, body in sections.items()
    }


def codes(text: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", text))


def signature(function: object, skipped: int = 0) -> str:
    """Parameters and defaults, without annotations; an enum's member by its name."""
    parameters = list(inspect.signature(function).parameters.values())[skipped:]
    shown = []
    for parameter in parameters:
        default = parameter.default
        text = str(default) if isinstance(default, enum.Enum) else repr(default)
        shown.append(parameter.name + ("" if default is parameter.empty else f"={text}"))
    return f"({', '.join(shown)})"


def members(name: str, owner: type) -> Iterator[str]:
    """What a class offers beside the fields that its signature shows."""
    for member, raw in vars(owner).items():
        if member.startswith("_") or isinstance(raw, types.MemberDescriptorType):
            continue
        bound = isinstance(raw, classmethod | staticmethod)
        if bound or inspect.isfunction(raw):
            yield "." + member + signature(getattr(owner, member), 0 if bound else 1)
        elif isinstance(raw, property):
            yield "." + member
    yield from ("." + field for field in vars(INSTANCES.get(name, object)) if name in INSTANCES and field[0] != "_")


def test_every_public_name_of_the_scheduler_is_documented_as_it_is(entries):
    made: dict[str, set[str]] = {}
    for name in scheduler.__all__:
        value = getattr(scheduler, name)
        if isinstance(value, enum.EnumMeta):
            made[name] = {member.name for member in value}
        elif inspect.isclass(value):
            made[name + signature(value)] = set(members(name, value))
        else:
            made[name] = set(value) if isinstance(value, dict) else {coefficient.name for coefficient in value}
    made["scheduler.errors"] = {name for name, value in vars(errors).items() if inspect.isclass(value)}
    documented = {name: codes(rest) for name, rest in entries["Python: scheduler"].items()}
    assert documented == made


def filled(kind: type[msgspec.Struct], **changes: object) -> typing.Any:
    """A record with a value in every field, optional ones too."""
    hints = typing.get_type_hints(kind)
    samples: dict[object, object] = {int: 1, float: 1.0, str: "x", bool: False}
    values = {}
    for name in kind.__struct_fields__:
        hint = hints[name]
        options = [option for option in typing.get_args(hint) if option is not type(None)]
        if isinstance(hint, types.UnionType):
            hint = options[0]
        origin = typing.get_origin(hint)
        if origin is not None:
            values[name] = origin()
        else:
            values[name] = filled(hint) if issubclass(hint, msgspec.Struct) else samples[hint]
    return kind(**{**values, **changes})


def attributes(span: typing.Any) -> set[str]:
    return {item.key for item in span.attributes}


def test_every_span_and_attribute_is_documented(entries):
    def wall(at_ns: int) -> int:
        return at_ns

    arrived = filled(RequestArrived, model="a-model", operation="an-operation", options=filled(RequestOptions), **HEX)
    arrived = msgspec.structs.replace(arrived, options=msgspec.structs.replace(arrived.options, choices=2))
    story = otlp.RequestStory(arrived, filled(RequestAdmitted), 1)
    spans = [
        otlp.plan_span("run", filled(PlanCommitted), filled(PlanCompleted, outcome="completed"), 1, [], wall),
        otlp.plan_span("run", filled(PlanCommitted), None, 1, [], wall),
        otlp.request_span("run", story, filled(Finished, finish_reason="stop"), 1, wall),
        otlp.request_span("run", story, None, 1, wall),
        otlp.policy_span("run", filled(PolicyApplied, coefficients=PolicyConfig().as_dict()), wall),
    ]
    made: dict[str, set[str]] = {}
    for span in spans:
        name = span.name.replace(arrived.model, "{model}").replace(arrived.operation, "{operation}")
        made.setdefault(name, set()).update(attributes(span))
        for event in span.events:
            made.setdefault(event.name, set()).update(attributes(event))
    made["resource"] = attributes(otlp.resource("run", otlp.about_run("v", "host", "model", "cpu")))
    made["{method} {route}"] = set(CALL_ATTRIBUTES)
    made[PROPOSAL_SPAN] = set(PROPOSAL_ATTRIBUTES)
    assert {name: codes(rest) for name, rest in entries["Spans"].items()} == made
