"""How fast the dashboard's pages are in a real browser: until something is drawn, until the page is of use, and until
an answer to a click is drawn.

Times are taken inside the page: from the start of the navigation, or from the click, to the frame after the change.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

from service.load.errors import PageNotShown
from service.load.statistics import percentile

PATIENCE_MS = 60_000
READING_MS = 500
"""Between the page and the click, as a person reads before it."""
VIEWPORT = {"width": 1280, "height": 800}


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    """A page to measure. `useful`: a selector of the first that a person came for, `complete`: of what comes last.

    `act` is JavaScript that does one thing, as a click or a choice does, and `drawn` an expression that is true when
    its answer is on the page; `acts` says in words what is done.
    """

    name: str
    path: str
    useful: str
    complete: str
    acts: str
    act: str
    drawn: str


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """One view, once, in ms. `warm`: the browser has seen the dashboard before."""

    name: str
    warm: bool
    first_paint: float
    useful: float
    complete: float
    interaction: float


def click(selector: str) -> str:
    """JavaScript that clicks the first element of a selector."""
    return f"document.querySelector({json.dumps(selector)}).click()"


def measure(
    browser: Any, address: str, views: Sequence[View], rounds: int, show: Callable[[int], None]
) -> tuple[list[Sample], dict[str, str]]:
    """Every view cold and then warm, `rounds` times, and by name what a page did not do in time.

    `show` is told how many views are done.
    """
    samples: list[Sample] = []
    problems: dict[str, str] = {}
    for done in range(rounds):
        for number, view in enumerate(views, 1):
            context = browser.new_context(viewport=VIEWPORT, locale="en-US")
            context.set_default_timeout(PATIENCE_MS)
            try:
                samples += [_once(context, address, view, warm=warm) for warm in (False, True)]
            except PageNotShown as error:
                problems[view.name] = str(error)
            finally:
                context.close()
            show(done * len(views) + number)
    return samples, problems


def _once(context: Any, address: str, view: View, *, warm: bool) -> Sample:
    page = context.new_page()
    page.add_init_script(_note_first("heliosUseful", view.useful))
    page.add_init_script(_note_first("heliosComplete", view.complete))
    try:
        page.goto(address + view.path)
        first, useful, complete = page.evaluate(_WAIT_FOR_TIMES)
        page.wait_for_timeout(READING_MS)
        interaction = page.evaluate(_timed(view.act, view.drawn))
    except Exception as error:
        raise PageNotShown(f"{view.name} ({view.path}): {str(error).strip().splitlines()[0]}") from error
    finally:
        page.close()
    return Sample(view.name, warm, first, useful, complete, interaction)


# Polled here: Playwright's own waiting evaluates text, which the pages' content security policy refuses.
_WAIT_FOR_TIMES = f"""() => new Promise((resolve, reject) => {{
    const look = () => {{
        const paint = performance.getEntriesByName("first-contentful-paint")[0];
        const times = [paint && paint.startTime, window.heliosUseful, window.heliosComplete];
        if (times.every((time) => time !== undefined)) resolve(times);
        else if (performance.now() > {PATIENCE_MS}) reject(new Error("it did not show what it should"));
        else setTimeout(look, 20);
    }};
    look();
}})"""


def _note_first(name: str, selector: str) -> str:
    """Notes as `name` when the first element of a selector has been drawn."""
    return f"""(() => {{
        const look = () => {{
            const found = document.querySelector({json.dumps(selector)});
            if (found && found.getClientRects().length) {{
                requestAnimationFrame(() => (window.{name} = performance.now()));
            }} else requestAnimationFrame(look);
        }};
        look();
    }})()"""


def _timed(act: str, drawn: str) -> str:
    """Does `act`, and gives the ms to the frame after `drawn` became true."""
    return f"""() => new Promise((resolve, reject) => {{
        const begun = performance.now();
        const look = () => {{
            let done = false;
            try {{ done = Boolean({drawn}); }} catch (error) {{ done = false; }}
            if (done) requestAnimationFrame(() => resolve(performance.now() - begun));
            else if (performance.now() - begun > {PATIENCE_MS / 2}) reject(new Error("no answer to a click"));
            else requestAnimationFrame(look);
        }};
        {act};
        look();
    }})"""


def rows(views: Sequence[View], samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """One row for each view that was measured: medians and maxima in ms, cold and warm."""
    found = []
    for view in views:
        row: dict[str, Any] = {"page": view.name, "interaction": view.acts}
        if not any(sample.name == view.name for sample in samples):
            continue
        for state, warm in (("cold", False), ("warm", True)):
            own = [sample for sample in samples if sample.name == view.name and sample.warm == warm]
            for name in ("first_paint", "useful", "complete"):
                values = [getattr(sample, name) for sample in own]
                row[f"{name}_{state}_p50_ms"] = round(percentile(values, 0.5), 1)
                row[f"{name}_{state}_max_ms"] = round(max(values), 1)
        answers = [sample.interaction for sample in samples if sample.name == view.name]
        row["interaction_p50_ms"] = round(percentile(answers, 0.5), 1)
        row["interaction_max_ms"] = round(max(answers), 1)
        found.append(row)
    return found
