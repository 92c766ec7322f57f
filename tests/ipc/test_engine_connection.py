"""The engine's ROUTER and the service's client, over a real socket in one process."""

from __future__ import annotations

import asyncio

import pytest

from service.ipc.client import EngineClient
from service.ipc.errors import EngineLost, EngineRefused, EngineUnavailable, PolicyRejected
from service.ipc.messages import (
    Accepted,
    Cancel,
    ConfigurePolicy,
    EngineReady,
    EngineStopping,
    Hello,
    PolicyAcknowledged,
    Refused,
    Sampling,
    Submit,
    Tokens,
)
from service.ipc.server import EngineServer


def ready(run_id: str = "run-1") -> EngineReady:
    return EngineReady(run_id, 1, 1, 2048, 64, 16, 100)


def request(request_id: str = "a", prompt: int = 3) -> Submit:
    return Submit(request_id, "m", list(range(prompt)), 8, Sampling(), [0], False, 0, 0)


class Engine:
    """A scripted engine on a real EngineServer; `inbox` keeps every message in order."""

    def __init__(self, endpoint: str, run_id: str = "run-1") -> None:
        self.server = EngineServer(endpoint)
        self.run_id = run_id
        self.client = b""
        self.inbox: list[object] = []

    async def next(self, kind: type) -> object:
        """The next message of `kind`; Hello is answered on the way."""
        async with asyncio.timeout(20):
            while True:
                for client, message in self.server.receive():
                    if isinstance(message, Hello):
                        self.client = client
                        self.server.send(client, [ready(self.run_id)])
                    self.inbox.append(message)
                for at, message in enumerate(self.inbox):
                    if isinstance(message, kind):
                        return self.inbox.pop(at)
                await asyncio.sleep(0.001)

    def say(self, *events) -> bool:
        return self.server.send(self.client, list(events))


async def connected(endpoint: str) -> tuple[Engine, EngineClient]:
    engine = Engine(endpoint)
    client = EngineClient(endpoint)
    await client.start()
    await engine.next(Hello)
    await client.wait_ready()
    return engine, client


def run(coroutine) -> None:
    async def bounded():
        async with asyncio.timeout(30):
            await coroutine

    asyncio.run(bounded())


def test_a_request_streams_from_submit_to_its_last_tokens(endpoint):
    async def scenario():
        engine, client = await connected(endpoint)
        assert client.state == "ready"
        assert client.ready == ready()

        async def answer():
            message = await engine.next(Submit)
            assert message == request()
            engine.say(Accepted("a"))
            engine.say(Tokens("a", [5], 3, 1), Tokens("a", [6], 3, 2, "length"))

        task = asyncio.create_task(answer())
        async with client.submit(request()) as stream:
            got = [tokens async for tokens in stream]
        await task
        assert [t.token_ids for t in got] == [[5], [6]]
        assert got[-1].finish_reason == "length"
        await client.close()
        assert engine.server.receive() == []  # a finished request is not cancelled
        engine.server.close()

    run(scenario())


def test_leaving_a_stream_early_cancels_the_request(endpoint):
    async def scenario():
        engine, client = await connected(endpoint)

        async def reader():
            async with client.submit(request()) as stream:
                async for _ in stream:
                    break

        task = asyncio.create_task(reader())
        await engine.next(Submit)
        engine.say(Accepted("a"), Tokens("a", [5], 3, 1))
        assert await engine.next(Cancel) == Cancel("a", "abort")
        await task
        await client.close()
        engine.server.close()

    run(scenario())


def test_a_task_cancelled_while_it_waits_to_be_accepted_cancels_the_request(endpoint):
    async def scenario():
        engine, client = await connected(endpoint)

        async def reader():
            async with client.submit(request()):
                pass

        task = asyncio.create_task(reader())
        await engine.next(Submit)
        task.cancel()
        assert await engine.next(Cancel) == Cancel("a", "abort")
        with pytest.raises(asyncio.CancelledError):
            await task
        await client.close()
        engine.server.close()

    run(scenario())


def test_a_stop_string_ends_the_request_and_its_last_message_still_arrives(endpoint):
    async def scenario():
        engine, client = await connected(endpoint)

        async def reader():
            async with client.submit(request()) as stream:
                last = None
                async for tokens in stream:
                    last = tokens
                    stream.cancel("stop", 7)
                return last

        task = asyncio.create_task(reader())
        await engine.next(Submit)
        engine.say(Accepted("a"), Tokens("a", [5], 3, 1))
        assert await engine.next(Cancel) == Cancel("a", "stop", 7)
        engine.say(Tokens("a", [], 3, 1, "stop"))
        assert (await task).finish_reason == "stop"
        await client.close()
        engine.server.close()

    run(scenario())


def test_a_refused_request_raises_before_anything_is_streamed(endpoint):
    async def scenario():
        engine, client = await connected(endpoint)

        async def reader():
            async with client.submit(request()):
                raise AssertionError("entered")

        task = asyncio.create_task(reader())
        await engine.next(Submit)
        engine.say(Refused("a", "queue_full", "wait"))
        with pytest.raises(EngineRefused) as caught:
            await task
        assert (caught.value.code, caught.value.message) == ("queue_full", "wait")
        await client.close()
        engine.server.close()

    run(scenario())


def test_a_request_id_that_runs_already_is_refused_and_leaves_the_first_alone(endpoint):
    async def scenario():
        engine, client = await connected(endpoint)

        async def first():
            async with client.submit(request()) as stream:
                return [t async for t in stream]

        task = asyncio.create_task(first())
        await engine.next(Submit)
        engine.say(Accepted("a"))
        with pytest.raises(EngineRefused):
            async with client.submit(request()):
                pass
        engine.say(Tokens("a", [1], 3, 1, "length"))
        assert len(await task) == 1
        assert engine.server.receive() == []
        await client.close()
        engine.server.close()

    run(scenario())


def test_the_death_of_the_engine_ends_every_stream_and_the_next_engine_serves(endpoint):
    async def scenario():
        engine, client = await connected(endpoint)

        async def reader(request_id):
            got = []
            try:
                async with client.submit(request(request_id)) as stream:
                    async for tokens in stream:
                        got.append(tokens)
            except EngineLost:
                return got
            raise AssertionError("not told that the engine is lost")

        tasks = [asyncio.create_task(reader(name)) for name in ("a", "b")]
        await engine.next(Submit)
        await engine.next(Submit)
        engine.say(Accepted("a"), Accepted("b"), Tokens("a", [1], 3, 1))
        engine.server.close()
        got = await asyncio.gather(*tasks)
        assert [len(g) for g in got] == [1, 0]
        assert client.state == "down"
        assert client.ready is None
        with pytest.raises(EngineUnavailable):
            async with client.submit(request("c")):
                pass
        successor = Engine(endpoint, "run-2")
        await successor.next(Hello)
        assert (await client.wait_ready()).run_id == "run-2"
        assert successor.inbox == []  # nothing that was meant for the dead engine
        await client.close()
        successor.server.close()

    run(scenario())


def test_a_client_that_starts_before_its_engine_waits_for_it(endpoint):
    async def scenario():
        client = EngineClient(endpoint)
        await client.start()
        assert client.state == "starting"
        with pytest.raises(EngineUnavailable):
            await client.configure_policy(2, {})
        engine = Engine(endpoint)
        await engine.next(Hello)
        await client.wait_ready()
        await client.close()
        await client.close()
        engine.server.close()

    run(scenario())


def test_a_stopping_engine_takes_no_new_request_and_still_ends_the_open_ones(endpoint):
    async def scenario():
        engine, client = await connected(endpoint)

        async def reader():
            async with client.submit(request()) as stream:
                return [t async for t in stream]

        task = asyncio.create_task(reader())
        await engine.next(Submit)
        engine.say(Accepted("a"), EngineStopping(), Tokens("a", [], 3, 0, "abort", "the server is shutting down"))
        assert (await task)[-1].finish_reason == "abort"
        assert client.state == "stopping"
        with pytest.raises(EngineUnavailable):
            async with client.submit(request("b")):
                pass
        await client.close()
        engine.server.close()

    run(scenario())


def test_a_policy_change_answers_with_the_fence_or_with_why_not(endpoint):
    async def scenario():
        engine, client = await connected(endpoint)
        change = asyncio.create_task(client.configure_policy(2, {"token_fairness": 1.0}))
        assert await engine.next(ConfigurePolicy) == ConfigurePolicy(2, {"token_fairness": 1.0})
        engine.say(PolicyAcknowledged(2, 17))
        assert await change == 17
        change = asyncio.create_task(client.configure_policy(3, {}))
        await engine.next(ConfigurePolicy)
        engine.say(PolicyAcknowledged(3, 17, "no"))
        with pytest.raises(PolicyRejected, match="no"):
            await change
        change = asyncio.create_task(client.configure_policy(4, {}))
        await engine.next(ConfigurePolicy)
        engine.server.close()
        with pytest.raises(EngineUnavailable, match="before it acknowledged"):
            await change
        await client.close()

    run(scenario())


def test_a_late_answer_is_not_taken_for_the_answer_to_another_withdrawal(endpoint):
    async def scenario():
        engine, client = await connected(endpoint)
        change = asyncio.create_task(client.configure_policy(1, {}, withdraws=3))
        assert await engine.next(ConfigurePolicy) == ConfigurePolicy(1, {}, 3)
        engine.say(PolicyAcknowledged(1, 5), PolicyAcknowledged(1, 6, None, 2), PolicyAcknowledged(1, 7, None, 3))
        assert await change == 7
        await client.close()
        engine.server.close()

    run(scenario())


def test_a_policy_change_that_is_never_answered_ends_with_an_error(endpoint):
    async def scenario():
        engine, client = await connected(endpoint)
        with pytest.raises(EngineUnavailable, match="version 2"):
            await client.configure_policy(2, {}, timeout_s=0.01)
        await client.close()
        engine.server.close()

    run(scenario())
