"""The pictures of docs/operating.md: a real server, traffic on the shipped model, and a Chromium that follows the text.

    python benchmarks/make_pictures.py [--out docs/images] [--seconds 150]

Needs a Chromium. It takes some five minutes.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import itertools
import pathlib
import shutil
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
from playwright.sync_api import Page, sync_playwright
from served_streams import TOPICS, helios_server

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
PATIENCE_MS = 300_000
SETTLED_MS = 1500
DRAFT = "token_fairness:64"
SHORT, LONG_EACH, CLIENTS = 40, 4, 12
MODEL = "gpu/assets/byte-model"


def ask(base: str, done: threading.Event, numbers: Iterator[int]) -> None:
    """One client: short questions, each fifth one behind a long text."""
    with httpx.Client(base_url=base, timeout=300) as client:
        for number in numbers:
            if done.is_set():
                return
            topic = TOPICS[number % len(TOPICS)]
            long = number % LONG_EACH == 0
            text = f"Question {number} of many. " + f"Tell me about {topic}. " * (36 if long else 2)
            body = {
                "model": pathlib.Path(MODEL).name,
                "messages": [{"role": "user", "content": text}],
                "max_tokens": SHORT * (1 + number % 3),
                "stream": True,
            }
            with (
                contextlib.suppress(httpx.HTTPError),
                client.stream("POST", "/v1/chat/completions", json=body) as answer,
            ):
                for _ in answer.iter_lines():
                    pass


@contextlib.contextmanager
def traffic(base: str) -> Iterator[None]:
    """Clients that ask one question after the other."""
    done, numbers = threading.Event(), itertools.count()
    clients = [threading.Thread(target=ask, args=(base, done, numbers), daemon=True) for _ in range(CLIENTS)]
    for client in clients:
        client.start()
    try:
        yield
    finally:
        done.set()


PIXELS = """async (picture) => {
    const image = await createImageBitmap(await (await fetch("data:image/png;base64," + picture)).blob());
    const pen = new OffscreenCanvas(image.width, image.height).getContext("2d");
    pen.drawImage(image, 0, 0);
    const bytes = pen.getImageData(0, 0, image.width, image.height).data;
    let text = "";
    for (let at = 0; at < bytes.length; at += 32768) text += String.fromCharCode(...bytes.subarray(at, at + 32768));
    return [image.width, image.height, btoa(text)];
}"""


def with_palette(desk: Page, picture: bytes) -> bytes:
    """The same PNG picture with 256 colours, which takes half the space; `desk` is any page without a policy."""
    width, height, pixels = desk.evaluate(PIXELS, base64.b64encode(picture).decode())
    colours = np.frombuffer(base64.b64decode(pixels), np.uint8).reshape(-1, 4)[:, :3].astype(np.int64)
    _, keys, counts = np.unique((colours >> 3) @ np.array([1024, 32, 1]), return_inverse=True, return_counts=True)
    sums = np.stack([np.bincount(keys, colours[:, channel]) for channel in range(3)], axis=1)
    means = sums / counts[:, None]
    palette = means[np.argsort(-counts)[:256]]
    nearest = np.abs(means[:, None] - palette[None]).sum(axis=2).argmin(axis=1)
    rows = np.zeros((height, width + 1), np.uint8)
    rows[:, 1:] = nearest[keys].reshape(height, width)
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", palette.round().astype(np.uint8).tobytes()),
        (b"IDAT", zlib.compress(rows.tobytes(), 9)),
        (b"IEND", b""),
    )
    chunks = (struct.pack(">I", len(d)) + name + d + struct.pack(">I", zlib.crc32(name + d)) for name, d in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


class Camera:
    """Takes pictures of one page at 1280×800."""

    def __init__(self, page: Page, desk: Page, base: str, out: pathlib.Path) -> None:
        self.page = page
        self._desk = desk
        self._base = base
        self._out = out

    def open(self, path: str, complete: str) -> None:
        """Goes to a page and waits until `complete`, a selector, is there."""
        self.page.goto(f"{self._base}{path}")
        self.page.locator(complete).first.wait_for()
        self.page.wait_for_timeout(SETTLED_MS)

    def take(self, name: str, at: str | None = None) -> None:
        """A picture of what is in view, with `at` a selector at its top."""
        if at is not None:
            place = self.page.locator(at).first
            place.evaluate("e => window.scrollTo(0, e.getBoundingClientRect().top + window.scrollY - 66)")
        self.page.wait_for_timeout(SETTLED_MS)
        (self._out / f"{name}.png").write_bytes(with_palette(self._desk, self.page.screenshot()))


def slowest_request(base: str) -> dict[str, Any]:
    """The finished request that waited longest for its first token."""
    items = httpx.get(f"{base}/api/requests", params={"limit": 500}, timeout=60).json()["items"]
    done = [item for item in items if item["finished_at"] is not None]
    return max(done, key=lambda item: (item["queue_ms"] or 0) + (item["prefill_ms"] or 0))


def look_around(camera: Camera, base: str) -> None:
    """Healthy? and why did that request stall?"""
    camera.open("/dashboard/?last=5m", "main h1")
    camera.take("overview")
    camera.open("/dashboard/timeline?last=5m", "main h1")
    camera.take("timeline")
    camera.open("/dashboard/requests", "main h1")
    camera.take("requests")
    slow = slowest_request(base)
    camera.open(f"/dashboard/requests/{slow['run_id']}/{slow['request_id']}", "main h1")
    camera.take("request")
    plans = httpx.get(f"{base}/api/plans", params={"request": slow["request_id"], "limit": 1}, timeout=60).json()[
        "items"
    ]
    camera.open(f"/dashboard/plan/{plans[0]['run_id']}/{plans[0]['fence']}", "#plan-lanes .ag-row")
    camera.take("plan")


def steer(camera: Camera) -> None:
    """Draft, preview, sweep, trial and the way back."""
    page = camera.page
    camera.open(f"/dashboard/policy?draft={DRAFT}", "#policy-diff tbody tr")
    camera.take("policy-draft")
    page.get_by_role("textbox", name="Minutes of traffic").fill("2")
    page.get_by_text("Sweep one or two coefficients").click()
    page.locator("#sweep-first").click()
    page.get_by_role("option", name="Token fairness").click()
    page.locator("#sweep-first-values").fill("4, 16, 64, 256")
    page.get_by_role("button", name="Preview the draft").click()
    page.locator("#preview-progress").wait_for()
    page.locator("#preview-result .headline").wait_for()
    camera.take("policy-preview", at="#preview-state")
    camera.take("policy-sweep", at="#sweep-y")
    page.get_by_text("Apply on trial, with a way back").click()
    page.get_by_role("textbox", name="Who").fill("olga")
    page.get_by_role("textbox", name="Note").fill("faster first tokens")
    page.get_by_role("textbox", name="First token p99, of samples").fill("30")
    page.get_by_role("textbox", name="Inter-token p99, at most").fill("150 %")
    page.get_by_role("textbox", name="Throughput, at least").fill("80 %")
    page.locator(".policy-side").evaluate("side => side.scrollTop = side.scrollHeight")
    camera.take("policy-trial-form", at="h1")
    page.get_by_role("button", name="Apply on trial").click()
    page.locator("#guard-panel .judgement.holds, #guard-panel .judgement.broken").first.wait_for()
    camera.take("policy-trial", at="h1")
    page.get_by_role("button", name="Roll back now").click()
    page.get_by_role("dialog").get_by_role("button", name="Roll back now").click()
    page.locator("#policy-trials summary").first.click()
    camera.take("policy-history", at="#policy-history")


def look_deeper(camera: Camera) -> None:
    """Costs, learning and SQL."""
    camera.open("/dashboard/costs?last=1h", "main h1")
    camera.take("costs")
    camera.open("/dashboard/learning?last=1h", "main h1")
    camera.take("learning")
    camera.open("/dashboard/sql", "main h1")
    camera.take("sql")


def main() -> None:
    """Makes every picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("docs/images"))
    parser.add_argument("--seconds", type=float, default=150.0, help="traffic before the first picture")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    chromium = next(filter(None, map(shutil.which, CHROMIUM)), None)
    with helios_server("--model", MODEL) as base, traffic(base), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--headless"])
        page = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme="light")
        page.set_default_timeout(PATIENCE_MS)
        camera = Camera(page, browser.new_page(), base, options.out)
        time.sleep(options.seconds)
        look_around(camera, base)
        steer(camera)
        look_deeper(camera)
        browser.close()
    for picture in sorted(options.out.glob("*.png")):
        print(f"{picture}  {picture.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
