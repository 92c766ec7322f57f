"""How far a preview is from a real run of the same traffic, and how fast it is.

Starts `helios serve`, sends requests that come on their own (Poisson arrivals, log-normal lengths), then replays what
was recorded under the same policy. Prints, for each seed of the simulator, simulated over recorded, and plans a second
of processor time.

    python benchmarks/bench_preview.py --model gpu/assets/byte-model --rate 4 --seconds 100
"""

from __future__ import annotations

import argparse
import asyncio
import json
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

import httpx
from served_streams import wait_ready

from scheduler.kernels.loader import load_kernels
from scheduler.policy import PolicyConfig
from service.control.preview.asking import preview_request
from service.control.preview.messages import PreviewResult
from service.control.preview.replay import preview
from service.store.database import open_database

ALPHABET = "abcdefgh "
FIGURES = ("ttft_p50_ms", "ttft_p99_ms", "time_per_token_p50_ms", "time_per_token_p99_ms", "tokens_per_s", "busy_share")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="gpu/assets/byte-model")
    parser.add_argument("--port", type=int, default=8971)
    parser.add_argument("--rate", type=float, default=4.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--prompt", type=int, default=400, help="the longest prompt, characters")
    parser.add_argument("--output", type=int, default=120, help="the longest answer, tokens")
    parser.add_argument("--seeds", type=int, default=5, help="of the simulator")
    parser.add_argument("--option", action="append", default=[], help="one more option of helios serve")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


async def send(base: str, rate: float, seconds: float, longest: tuple[int, int]) -> int:
    """Open-loop traffic; returns how many requests were answered."""
    luck, loop = random.Random(1), asyncio.get_running_loop()
    async with httpx.AsyncClient(base_url=base, timeout=600, limits=httpx.Limits(max_connections=1000)) as client:
        model = (await client.get("/v1/models")).json()["data"][0]["id"]

        async def one(body: dict[str, Any]) -> bool:
            async with client.stream("POST", "/v1/completions", json=body) as answer:
                async for _line in answer.aiter_lines():
                    pass
                return answer.status_code == 200

        tasks, began, at = [], loop.time(), 0.0
        while (at := at + luck.expovariate(rate)) < seconds:
            prompt = "".join(luck.choice(ALPHABET) for _ in range(_length(luck, 4.0, 1.0, longest[0])))
            body = {"model": model, "prompt": prompt, "stream": True, "seed": len(tasks)}
            body["max_tokens"] = _length(luck, 3.5, 0.8, longest[1])
            await asyncio.sleep(max(0.0, began + at - loop.time()))
            tasks.append(asyncio.create_task(one(body)))
        return sum(await asyncio.gather(*tasks))


def _length(luck: random.Random, mean: float, spread: float, most: int) -> int:
    return max(4, min(most, round(luck.lognormvariate(mean, spread))))


def recorded(options: argparse.Namespace, folder: pathlib.Path) -> int:
    """Serves and sends; the data directory is `folder`. Returns how many requests were answered."""
    base = f"http://127.0.0.1:{options.port}"
    command = [sys.executable, "-m", "service.cli", "serve", "--model", options.model, "--port", str(options.port)]
    extra = [part for option in options.option for part in option.split()]
    with (folder.parent / "server.log").open("wb") as log:
        server = subprocess.Popen([*command, "--data-dir", str(folder), *extra], stdout=log, stderr=log)
    try:
        wait_ready(base, server)
        return asyncio.run(send(base, options.rate, options.seconds, (options.prompt, options.output)))
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)


def replayed(folder: pathlib.Path, minutes: float, seed: int) -> tuple[PreviewResult, float]:
    """The preview of the policy in force, and plans a second of processor time, reading included."""
    request = preview_request(PolicyConfig.balanced(), 1, minutes=minutes, seed=seed)
    engine = open_database(str(folder / "helios.db"), readonly=True)
    began = time.process_time()
    result = preview(engine, request, lambda _share, _words: None)
    engine.dispose()
    return result, result.running.plans / (time.process_time() - began)


def main() -> None:
    """Records, replays, prints."""
    options = arguments()
    load_kernels()
    with tempfile.TemporaryDirectory() as made:
        folder = pathlib.Path(made) / "data"
        answered = recorded(options, folder)
        minutes = options.seconds / 60 + 5
        runs = [replayed(folder, minutes, seed) for seed in range(options.seeds)]
    rows = [{error.name: error.ratio for error in result.simulator_error} for result, _ in runs]
    first = runs[0][0]
    if options.json:
        print(json.dumps({"answered": answered, "ratios": rows, "plans_per_s": [speed for _, speed in runs]}, indent=2))
        return
    print(f"{answered} answers, {first.recorded.plans} plans recorded; device busy {first.recorded.busy_share:.0%}")
    for error in first.simulator_error:
        print(f"recorded {error.name:<20} {error.recorded:.2f}")
    print("seed  " + "  ".join(f"{name:>18}" for name in FIGURES) + "  plans per s of processor time")
    for seed, (row, (_, speed)) in enumerate(zip(rows, runs, strict=True)):
        print(f"{seed:<6}" + "  ".join(f"{row[name] or 0:>18.3f}" for name in FIGURES) + f"  {speed:,.0f}")


if __name__ == "__main__":
    main()
