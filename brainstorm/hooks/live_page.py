"""A page in the browser that shows a training while it runs."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from brainstorm.constraints import Constraint, is_int
from brainstorm.hooks._page_content import SCRIPT, make_content, make_page
from brainstorm.hooks.base import Hook, Iterators, write_line

if TYPE_CHECKING:
    from brainstorm.hooks._page_server import PageServer

#: Seconds between renewals; browsers ask as often.
PAUSE = 2.0


class LivePage(Hook):
    """Show curves of all logs, the network, and its buffers with statistics, on a live page.

    This process serves the page during the training, to this machine only (the address is on
    127.0.0.1) and only under an address with a random token, which is printed at the start. The
    page is read-only. It costs time only while it is open in a browser: at most every two seconds,
    however many browsers there are, all buffers are read once between two updates.

    Args:
        port: The port; 0: any free one.
        timescale, interval, name: See `Hook`.
        verbose: Whether the address is printed; `None`: like the trainer.

    Attributes:
        address: The address of the page during training; else `None`.
    """

    __undescribed__ = {"_server", "_content", "_wanted", "_begin", "_renewed"}

    __constraints__ = {
        "port": Constraint("an integer from 0 to 65535", lambda v: is_int(v) and 0 <= v < 2**16)
    }

    _server: PageServer | None = None
    _content = ""
    _wanted = True
    _begin = 0.0
    _renewed = -math.inf

    role = "reader"
    idempotent = True

    def __init__(
        self,
        port: int = 0,
        timescale: str = "update",
        interval: int = 1,
        name: str | None = None,
        verbose: bool | None = True,
    ) -> None:
        super().__init__(name, timescale, interval, verbose)
        self.port = port

    @property
    def address(self) -> str | None:
        """The address of the page during training; else `None`."""
        return None if self._server is None else self._server.address

    def start(self, net: Any, stepper: Any, verbose: bool, named_data_iters: Iterators) -> None:
        """Open the page.

        Raises:
            TrainingError: The port is taken.
        """
        from brainstorm.hooks._page_server import PageServer  # here, because the import is slow

        super().start(net, stepper, verbose, named_data_iters)
        self._content, self._wanted, self._begin = "", True, time.monotonic()
        self._renewed = -math.inf
        frame = make_page(net, "{content}")
        pages = {
            "": lambda: ("text/html", frame.replace("{content}", self._ask(), 1)),
            "content": lambda: ("text/html", self._ask()),
            "page.js": lambda: ("text/javascript", SCRIPT),
        }
        try:
            self._server = PageServer(pages, self.port)
        except OSError as error:
            raise self.fail("port", "one that is free", self.port) from error
        if self.run_verbosity:
            write_line(f"{self.__name__} >> {self.address}")

    def _ask(self) -> str:
        """Return the last content, and request a new one; called by the server's threads."""
        self._wanted = True
        return self._content

    def __call__(self, epoch_nr: int, update_nr: int, net: Any, stepper: Any, logs: Any) -> None:
        """Renew the content if it was requested and is no longer fresh."""
        now = time.monotonic()
        if self._wanted and now - self._renewed >= PAUSE:
            self._wanted, self._renewed = False, now
            seconds = now - self._begin
            heading = f"Epoch {epoch_nr}, update {update_nr}, after {seconds:.0f} s"
            self._content = make_content(net, logs, heading)

    def finalize(self, net: Any, stepper: Any, logs: Any) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
