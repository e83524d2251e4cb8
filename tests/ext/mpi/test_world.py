"""Where there is no MPI, and to whom the watch listens."""

import json
import socket
import time

import pytest

import brainstorm as bs
from brainstorm.errors import MissingDependencyError, TrainingError
from brainstorm.ext import mpi
from brainstorm.ext.mpi import world
from brainstorm.ext.mpi.watch import Hub, name_ranks
from brainstorm.training import SgdStepper
from brainstorm.training.team import Team


@pytest.fixture
def without_mpi4py(monkeypatch):
    monkeypatch.setattr(world, "has", lambda module: False)
    for name in world.LAUNCHED:
        monkeypatch.delenv(name, raising=False)


def test_a_process_alone_needs_no_mpi(without_mpi4py, monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "1")
    trainer = bs.Trainer(SgdStepper(), verbose=True)
    team = mpi.distribute(trainer)
    assert (type(team), team.rank, team.size) == (Team, 0, 1)
    assert (team.share("value"), team.gather("value")) == ("value", ["value"])
    assert trainer.stepper.reducer is None
    assert trainer.verbose


def test_one_of_several_processes_needs_mpi4py(without_mpi4py, monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    with pytest.raises(MissingDependencyError) as error:
        mpi.distribute(SgdStepper())
    assert str(error.value) == (
        "this process is one of several (OMPI_COMM_WORLD_SIZE=4), but mpi4py is missing. Install "
        "it with: pip install 'brainstorm[mpi]'"
    )


def test_only_trainers_and_steppers_are_distributed():
    with pytest.raises(TrainingError, match=r"^distribute: expected a Trainer or a stepper, got 3"):
        mpi.distribute(3)


def test_names_of_ranks():
    assert name_ranks([2]) == "rank 2"
    assert name_ranks([0, 2]) == "ranks 0, 2"


class Peer:
    """The other end of a hub, which says what a test wants."""

    def __init__(self, hub, hello):
        self.socket = socket.create_connection(("127.0.0.1", hub.port))
        self.lines = self.socket.makefile("r")
        self.say(hello)

    def close(self):
        self.lines.close()
        self.socket.close()

    def say(self, message):
        self.socket.sendall(message.encode() + b"\n")

    def hear(self):
        self.socket.settimeout(5)
        return self.lines.readline()


@pytest.fixture
def hub():
    hub = Hub(3, lambda: 7, "127.0.0.1", "secret")
    yield hub
    hub.failure = None
    hub.leave()


@pytest.fixture
def connect(hub):
    peers = []

    def make(hello):
        peers.append(Peer(hub, hello))
        return peers[-1]

    yield make
    for peer in peers:
        peer.close()


HELLO = json.dumps({"rank": 1, "secret": "secret"})


def wait_for(what):
    for _ in range(100):
        if value := what():
            return value
        time.sleep(0.02)
    raise AssertionError("it did not come")


@pytest.mark.parametrize(
    "hello",
    [
        json.dumps({"rank": 1, "secret": "wrong"}),
        json.dumps({"rank": 3, "secret": "secret"}),
        json.dumps({"secret": "secret"}),
        "no JSON",
        "[1]",
    ],
)
def test_strangers_are_not_listened_to(hub, connect, hello):
    stranger = connect(hello)
    assert stranger.hear() == ""  # the line is closed
    assert hub.failure is None


def test_a_line_that_breaks_is_a_death_unless_the_rank_took_its_leave(hub, connect):
    for message in ("", json.dumps({"leaving": True})):
        peer = connect(HELLO)
        if message:
            peer.say(message)
        wait_for(lambda: 1 in hub._lines)
        hub.failure = None
        peer.socket.shutdown(socket.SHUT_RDWR)
        if message:
            time.sleep(0.1)
            assert hub.failure is None
        else:
            assert wait_for(lambda: hub.failure) == "rank 1 has died"
        hub._lines.clear()
        hub._left.clear()


def test_a_line_that_breaks_at_the_end_is_no_death(hub, connect):
    peer = connect(HELLO)
    line = wait_for(lambda: hub._lines.get(1))
    send = line.send

    def send_slowly(message):
        send(message)
        peer.close()  # as soon as it hears of the end, while others have not heard of it yet
        time.sleep(0.2)

    line.send = send_slowly
    hub.leave()
    assert hub.failure is None


def test_failures_are_told_to_all(hub, connect):
    first, second = connect(HELLO), connect(HELLO.replace("1", "2"))
    wait_for(lambda: len(hub._lines) == 2)
    first.say(json.dumps({"failed": "rank 1 has failed: because"}))
    assert json.loads(second.hear()) == {"failure": "rank 1 has failed: because"}
    assert hub.failure == "rank 1 has failed: because"


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (7, "an operation of all ranks has not ended within 9 s"),
        (6, "ranks 1, 2 did not come within 9 s"),
    ],
)
def test_who_is_waited_for_is_asked(hub, connect, monkeypatch, at, text):
    monkeypatch.setattr("brainstorm.ext.mpi.watch.ANSWER_TIME", 0.3)
    peers = [connect(HELLO), connect(HELLO.replace("1", "2"))]
    wait_for(lambda: len(hub._lines) == 2)
    hub.report_waiting(7, 9)
    for peer in peers:
        assert json.loads(peer.hear()) == {"where": True}
        peer.say(json.dumps({"at": at}))
    assert wait_for(lambda: hub.failure) == text
