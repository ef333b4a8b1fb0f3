"""Who is still there, and what processes make of it; what is dealt to them, and how their figures become one row."""

import copy
import signal
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import torch

from arpo.config.load import load
from arpo.config.processes import build_team
from arpo.engine.publishing import Elsewhere, dealt, server_publisher
from arpo.engine.settings import OpenAISettings
from arpo.engine.stats import EngineStats
from arpo.errors import ConfigError
from arpo.tools.stats import ToolStats
from arpo.train import watch
from arpo.train.costs import Spent, costs
from arpo.train.publishing import Twin
from arpo.train.signals import graceful
from arpo.train.team import ALONE, PeerLostError
from arpo.train.watch import Watch, meet

WAIT_S = 60


class Heard:
    """What a watch tells."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def __call__(self, reason: str) -> None:
        self.reasons.append(reason)


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[list[Watch], list[Heard]]]:
    """Three that have met as processes of one machine do, here in threads."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    heard = [Heard() for _ in range(3)]
    found: dict[int, Watch] = {}
    known, ready = [(0, b"")], threading.Event()

    def told(own: tuple[int, bytes]) -> tuple[int, bytes]:
        if own[0]:
            known[0] = own
            ready.set()
        assert ready.wait(WAIT_S)
        return known[0]

    def join(rank: int) -> None:
        found[rank] = meet(rank, 3, told, heard[rank])

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    watches = [found[rank] for rank in range(3)]
    yield watches, heard
    for one in watches:
        one.finish()
    for one in watches:
        one.close()


def test_a_connection_that_ends_is_a_process_that_is_gone(three: tuple[list[Watch], list[Heard]]) -> None:
    watches, heard = three
    assert all(one.known(0) is None for one in watches)
    watches[2]._peers[0].shutdown(socket.SHUT_RDWR)  # what the system does for a process that is killed
    for rank in (0, 1):
        reason = watches[rank].known(WAIT_S)
        assert reason is not None
        assert reason.startswith("process 2 ended without a word")
    assert heard[1].reasons == [watches[1].reason], "once"


def test_one_that_fails_says_why(three: tuple[list[Watch], list[Heard]]) -> None:
    watches, _ = three
    watches[1].tell("EngineDownError: http://127.0.0.1:8001/v1\nis gone")
    for rank in (0, 2):
        assert watches[rank].known(WAIT_S) == "process 1 failed: EngineDownError: http://127.0.0.1:8001/v1 is gone"


def test_after_the_end_nobody_is_missed(three: tuple[list[Watch], list[Heard]]) -> None:
    watches, heard = three
    for one in watches:
        one.finish()
    watches[0].close()
    time.sleep(0.2)
    assert [one.reasons for one in heard] == [[], [], []]


def test_one_that_is_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "BEAT_S", 0.01)
    monkeypatch.setattr(watch, "SILENT_BEATS", 3)
    ours, theirs = socket.socketpair()
    heard = Heard()
    one = Watch(0, {1: ours}, heard)
    assert "process 1 has been silent" in (one.known(WAIT_S) or "")
    one.close()
    theirs.close()


def test_a_stranger_is_not_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        strange = socket.create_connection(listener.getsockname())
        strange.sendall(b"x" * 20)
        right = socket.create_connection(listener.getsockname())
        right.sendall(b"w" * 16 + (1).to_bytes(4, "big"))
        found = watch._accepted(listener, 2, b"w" * 16)
        assert set(found) == {1}
        assert found[1].getpeername() == right.getsockname()
        for connection in (strange, right, *found.values()):
            connection.close()


async def test_one_process_has_everything() -> None:
    assert (ALONE.share("own"), ALONE.deal([1, 2, 3]), await ALONE.gather([1, 2])) == (["own"], [1, 2, 3], [1, 2])
    assert PeerLostError.exit_code == 8


def test_a_signal_that_is_passed_on_is_the_first() -> None:
    with graceful(lambda text: None, again=60) as stop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert stop.exit_code == 75
    with graceful(lambda text: None) as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.exit_code == 130
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_twin_takes_the_weights_and_of_an_adapted_policy_the_adapter() -> None:
    from arpo.engine.lora import attach
    from arpo.engine.models import load_policy
    from arpo.engine.settings import LoraSettings

    model, _ = load_policy("pocket", device="cpu")
    twin = Twin(copy.deepcopy(model))
    model.model.norm.weight.data += 1
    twin.take(model)
    assert torch.equal(twin.module.model.norm.weight, model.model.norm.weight)
    attach(model, LoraSettings(rank=2), base="pocket", seed=1)
    twin = Twin(copy.deepcopy(model))
    changed = dict(model.named_parameters())
    name = next(name for name in changed if ".lora_B." in name)
    changed[name].data += 1
    twin.take(model)
    assert torch.equal(dict(twin.module.named_parameters())[name], changed[name])
    Twin(None).take(model)  # of the processes that put together for another one


def servers(*more: str, **rest: str) -> OpenAISettings:
    return OpenAISettings(base_url="http://one/v1", replicas=more, **rest)


def test_servers_are_dealt_to_processes() -> None:
    two = servers("http://two/v1")
    assert [dealt(two, rank, 3).base_url for rank in range(3)] == ["http://one/v1", "http://two/v1", "http://one/v1"]
    with pytest.raises(ConfigError, match=r"2 servers for 1 process"):
        dealt(two, 0, 1)
    with pytest.raises(ValueError, match="named once"):
        servers("http://one/v1")
    with pytest.raises(ValueError, match="no http"):
        servers("two")


async def test_the_first_process_publishes_for_all() -> None:
    assert server_publisher(servers(), first=False) is None
    other = server_publisher(servers(publish="vllm"), first=False)
    assert isinstance(other, Elsewhere)
    await other.publish(None, 1)


@pytest.mark.parametrize(
    ("environment", "settings", "named"),
    [
        ({}, "train.processes=8", r"train.processes = 8.*run of 1.*--num_processes 8"),
        ({}, "train.sharded=true", r"train.sharded = true.*--use_fsdp"),
        ({"LOCAL_RANK": "0", "WORLD_SIZE": "4"}, "train.prompts=3", r"train.prompts = 3 .*4 processes"),
        ({"LOCAL_RANK": "0", "WORLD_SIZE": "4"}, "engine.type=vllm", r"vllm serve"),
        ({"ACCELERATE_MIXED_PRECISION": "no", "MASTER_ADDR": "127.0.0.1"}, "train.prompts=3", r"--multi_gpu"),
    ],
)
def test_a_launch_that_was_not_meant_is_refused(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], settings: str, named: str
) -> None:
    for name in ("LOCAL_RANK", "WORLD_SIZE", "RANK", "MASTER_ADDR", "ACCELERATE_MIXED_PRECISION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=named):
        build_team(load([], [settings]).config)


def test_figures_of_processes_are_added_up_and_seconds_are_the_slowest_ones() -> None:
    def tool(calls: int, latency: float) -> ToolStats:
        return ToolStats(calls=calls, cached=calls, in_flight=calls, latencies=[latency] * calls)  # type: ignore[arg-type]

    spent = [
        Spent(EngineStats(calls=3, seconds=1.0), {"search": tool(1, 1.0)}, {"reward/x": 1.0}, 2.0, 0.5),
        Spent(EngineStats(calls=4, seconds=2.0), {"search": tool(3, 3.0)}, {"reward/x": 2.0}, 4.0, 0.25),
    ]
    row = costs(spent, [])
    assert (row["engine/requests"], row["reward/x"]) == (7.0, 3.0)
    assert row["engine/idle_share"] == 1 - 3.0 / (2 * 4.0)
    assert (row["timing_s/gen"], row["timing_s/update"]) == (4.0, 0.5)
    assert (row["tools/search/cache_hits"], row["tools/search/in_flight"]) == (4.0, 3.0)
    assert row["tools/search/latency_p50"] == 3.0
