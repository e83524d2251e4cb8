"""Watching over the ranks: who died, who failed, who does not answer.

MPI itself has no common way to learn this: a rank that waits for a dead one waits for ever. So each
rank has a thread with a TCP connection to rank 0, which the operating system closes when a process
ends, however it ends. In a training where nothing happens nothing is sent.

The messages are lines of JSON, and whoever connects has to know a secret that is shared by MPI.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

__all__ = ["Hub", "Watch", "name_ranks"]

Message = dict[str, Any]

#: Seconds in which a living rank answers where it is.
ANSWER_TIME = 2.0

RANK_0_DIED = "rank 0 has died"

#: Seconds that a rank whose training has failed waits for the others to say so too.
FAREWELL_TIME = 5.0


class Watch:
    """The view of one rank of all others; `Hub` has it for rank 0.

    Args:
        rank: The number of this rank.
        where: Returns the number of the operation of all ranks that this rank waits in, or -1
            minus that of the last one, while it does something else.

    Attributes:
        failure: What ended the job, for messages; `None` as long as all is well.
    """

    def __init__(self, rank: int, where: Callable[[], int]) -> None:
        self.rank = rank
        self.where = where
        self.failure: str | None = None

    def connect(self, address: tuple[str, int], secret: str) -> None:
        """Connect with rank 0."""
        self._line = _Line(socket.create_connection(address, timeout=30))
        self._line.send({"rank": self.rank, "secret": secret})
        threading.Thread(target=self._listen, name="brainstorm-watch", daemon=True).start()

    def _listen(self) -> None:
        with contextlib.closing(self._line.receive()) as messages:
            self._answer(messages)

    def _answer(self, messages: Iterator[Message]) -> None:
        for message in messages:
            if "where" in message:
                self._line.send({"at": self.where()})
            elif "failure" in message:
                self.failure = self.failure or message["failure"]
            elif "end" in message:
                return
        self.failure = self.failure or RANK_0_DIED

    def report_failure(self, text: str) -> None:
        """Tell all others that this rank has failed."""
        self.failure = self.failure or text
        self._line.send({"failed": text})

    def report_waiting(self, operation: int, seconds: float) -> None:
        """Ask rank 0 to find out who keeps this rank waiting."""
        self._line.send({"waiting": operation, "seconds": seconds})

    def leave(self) -> None:
        """Say that this rank ends; after a failure, wait until all others have said so too."""
        self._line.send({"leaving": True})
        if self.failure is not None:
            self._line.wait_for_end(FAREWELL_TIME)


class Hub(Watch):
    """The watch of rank 0, with a line to each other rank.

    Args:
        size: How many ranks there are.
        where: See `Watch`.
        host: The interface to listen at; ``''`` is all of them.
        secret: What ranks have to know.
    """

    def __init__(self, size: int, where: Callable[[], int], host: str, secret: str) -> None:
        super().__init__(0, where)
        self.size = size
        self._secret = secret
        self._lines: dict[int, _Line] = {}
        self._answers: dict[int, int] = {}
        self._left: set[int] = set()
        self._lock = threading.Lock()
        self._is_searching = False
        self._server = socket.create_server((host, 0), backlog=size)
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, name="brainstorm-watch", daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it was closed
            while True:
                connection, _ = self._server.accept()
                line = _Line(connection)
                threading.Thread(
                    target=self._serve, args=(line,), name="brainstorm-watch", daemon=True
                ).start()

    def _serve(self, line: _Line) -> None:
        messages = line.receive()
        hello = next(messages, {})
        rank = hello.get("rank", 0)
        if hello.get("secret") == self._secret and rank in range(1, self.size):
            self._listen_to(rank, line, messages)
        messages.close()

    def _listen_to(self, rank: int, line: _Line, messages: Iterator[Message]) -> None:
        self._lines[rank] = line
        for message in messages:
            if "failed" in message:
                self._announce(message["failed"])
            elif "waiting" in message:
                self.report_waiting(message["waiting"], message["seconds"])
            elif "at" in message:
                self._answers[rank] = message["at"]
            elif "leaving" in message:
                self._left.add(rank)
        if rank not in self._left:
            self._left.add(rank)
            self._announce(f"rank {rank} has died")

    def _announce(self, text: str) -> None:
        with self._lock:
            if self.failure is None:
                self.failure = text
                self._send_all({"failure": text})

    def _send_all(self, message: Message) -> None:
        for line in list(self._lines.values()):
            line.send(message)

    def report_failure(self, text: str) -> None:
        """Tell all others that rank 0 has failed."""
        self._announce(text)

    def report_waiting(self, operation: int, seconds: float) -> None:
        """Find out who has not come to an operation, and say so."""
        with self._lock:
            if self._is_searching or self.failure is not None:
                return
            self._is_searching = True
        threading.Thread(target=self._search, args=(operation, seconds), daemon=True).start()

    def _search(self, operation: int, seconds: float) -> None:
        self._answers.clear()
        self._send_all({"where": True})
        time.sleep(ANSWER_TIME)
        answers = {0: self.where(), **self._answers}
        missing = [rank for rank in range(self.size) if answers.get(rank, -1) < operation]
        if missing:
            self._left.update(missing)  # nobody waits for them any more
            self._announce(f"{name_ranks(missing)} did not come within {seconds:g} s")
        elif all(answer >= 0 for answer in answers.values()):
            self._announce(f"an operation of all ranks has not ended within {seconds:g} s")
        self._is_searching = False

    def leave(self) -> None:
        """Say that rank 0 ends; after a failure, wait until all living ranks have said so too."""
        end = time.monotonic() + FAREWELL_TIME
        while self.failure and len(self._left) < self.size - 1 and time.monotonic() < end:
            time.sleep(0.05)
        # Who hears of the end first closes the line while the others have not heard of it yet.
        self._left.update(range(self.size))
        self._send_all({"end": True})
        self._server.close()


class _Line:
    """A connection over which messages go."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(None)
        self._connection = connection
        self._ended = threading.Event()

    def send(self, message: Message) -> None:
        with contextlib.suppress(OSError):  # whoever is gone is noticed where messages come from
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> Generator[Message, None, None]:
        """Yield the messages until one side ends, and close the connection."""
        try:
            with contextlib.suppress(OSError, ValueError), self._connection.makefile("rb") as lines:
                for line in lines:
                    message = json.loads(line)
                    yield message if isinstance(message, dict) else {}
        finally:
            self._ended.set()
            self._connection.close()

    def wait_for_end(self, seconds: float) -> None:
        self._ended.wait(seconds)


def name_ranks(ranks: list[int]) -> str:
    """Return what ranks are called in messages."""
    numbers = ", ".join(map(str, ranks))
    return f"rank {numbers}" if len(ranks) == 1 else f"ranks {numbers}"
