"""The live page: what it shows, when it costs time, and whom it answers."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import threading
import time

import numpy as np
import pytest

from brainstorm import tools
from brainstorm.errors import MissingDependencyError
from brainstorm.hooks import LivePage, MonitorLayerGradients, MonitorLoss
from brainstorm.hooks import _page_content as page_content
from brainstorm.hooks import _page_server as page_server
from tests.markup import Page
from tests.trainings import Call, refused


def looking(page, function, at=8):
    """Return a hook that logs what a function of the page returns after an update."""
    return Call(lambda epoch, update, net: function(page) if update == at else None, "look")


def place_of(page):
    """Return the port and the token of a page."""
    port, token = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/([\w-]{32})/", page.address).groups()
    return int(port), token


def ask(page, path="", method="GET", token="{token}", host="127.0.0.1:{port}"):
    """Return status, headers and text of the answer to a request."""
    port, known = place_of(page)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"Host": host.format(port=port)}
    connection.request(method, f"/{token.format(token=known)}/{path}", headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, dict(answer.getheaders()), text


def renew(page, update):
    """Let the page look at what the training has."""
    page(2, update, page.trainer.net, None, page.trainer.logs)


@pytest.fixture
def look(train, monkeypatch):
    """Train with the page, without pauses while no time passes, and return what was seen of it."""
    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    monkeypatch.setattr("brainstorm.hooks.live_page.PAUSE", 0.0)

    def run(function, *hooks, **options):
        page, found = LivePage(verbose=False), []
        last = looking(page, lambda page: found.append(function(page)))
        train(*hooks, page, last, epochs=3, **options)
        return found[0]

    return run


# -- content --------------------------------------------------------------------------------------


def test_the_page_shows_logs_network_and_buffers(look):
    hooks = MonitorLoss("valid", name="validation"), MonitorLayerGradients("Hidden")

    def look_again(page):
        first = ask(page, "content")[2]
        renew(page, 9)
        return first, *ask(page)

    first, status, headers, text = look(look_again, *hooks)
    assert "<h1>Epoch 0, update 0" in first
    assert status == 200
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert "<h1>Epoch 2, update 9, after 0 s</h1>" in text
    elements = Page(text).elements
    assert "total_loss" in text
    assert "validation: " in text
    assert sum(tag == "polyline" for tag, _ in elements) == 2 + 3 + 3
    assert {"Hidden", "Hidden.parameters"} <= {a["title"] for _, a in elements if "title" in a}
    assert "float64[4, 3]" in text
    assert "5 layers" not in text
    assert "6 layers" in text


def test_the_content_is_renewed_once_in_two_seconds_if_somebody_looks(look, monkeypatch):
    clock, made = [100.0], []
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.setattr("brainstorm.hooks.live_page.PAUSE", 2.0)
    monkeypatch.setattr(
        "brainstorm.hooks.live_page.make_content", lambda *args: made.append(clock[0]) or ""
    )

    def watch(page):
        for number in range(24 * 5):
            clock[0] = 100.0 + number / 10
            if number < 61:
                page._ask()  # one of 24 clients
            renew(page, number)

    look(watch)
    assert made == [100.0, 102.0, 104.0, 106.0]


def test_logs_may_hold_what_is_no_text_and_no_float(look):
    def log(epoch, *_):
        return {"\ud800<b>": 1.0, "huge": 10**400, "was huge": 10**400 if not epoch else 1.0}

    def look_again(page):
        ask(page, "content")
        renew(page, 8)
        return ask(page, "content")

    status, _, text = look(look_again, Call(log, "odd", "epoch"))
    assert status == 200
    assert "<b>?&lt;b&gt;</b>" in text
    assert "was huge" in text
    assert "<b>huge</b>" not in text


def test_without_graphviz_there_is_text(look, monkeypatch):
    def refuse(net):
        raise MissingDependencyError("no graphviz")

    monkeypatch.setattr(tools, "network_as_svg", refuse)
    text = look(ask)[2]
    assert "<pre>" in text
    assert "FullyConnected(size=4, activation=&#x27;tanh&#x27;)" in text


def test_names_are_not_replaced_by_the_content(look, monkeypatch):
    page = "brainstorm.hooks.live_page.make_page"
    monkeypatch.setattr(page, lambda net, content: f"{content}, a port named {{content}}")
    text = look(lambda page: (renew(page, 8), ask(page)[2])[1])
    assert text.count("<h1>") == 1
    assert text.endswith(", a port named {content}")


EVIL = "<script>alert(1)</script>\"'&"


def test_everything_is_escaped(net):
    logs = {EVIL: {"loss": [1.0, 2.0]}, "validation": {EVIL: [1.0]}, "text": [EVIL]}
    net.layers["Hidden"].kwargs["activation"] = EVIL
    content = page_content.make_content(net, logs, EVIL)
    text = page_content.make_page(net, content)
    scripts = [attributes for tag, attributes in Page(text).elements if tag == "script"]
    assert scripts == [{"src": "page.js"}]
    assert "alert(1)" in text


def test_large_networks_and_many_logs_are_shown_in_part(net, monkeypatch):
    monkeypatch.setattr(page_content, "MOST_ARRAYS", 3)
    logs = {f"log_{i}": [1.0] for i in range(30)}
    text = page_content.make_content(net, logs, "Epoch 1")
    assert text.count("<figure>") == 24
    assert "<p>and 6 more</p>" in text
    assert "<th" not in text


def points(text):
    return [
        [tuple(map(float, point.split(","))) for point in line.split()]
        for line in re.findall(r'points="([^"]*)"', text)
    ]


def test_curves():
    curves = {"a": ([0, 1, 2], [4.0, 0.0, 2.0]), "b": ([1, 4], [1.0, 1.0])}
    text = page_content._chart("loss", "epoch", curves)
    (first, second, third), other = points(text)
    assert [x for x, _ in other] == [second[0], 355]  # an epoch is at one place for all curves
    assert first[0] < second[0] < third[0]
    assert third[0] - second[0] == second[0] - first[0]
    assert first[1] < third[1] < second[1]  # downwards on the screen
    assert third[1] - first[1] == pytest.approx(second[1] - third[1])
    assert "a: 2<" in text
    assert "to epoch 4<" in text


@pytest.mark.parametrize(
    ("values", "lengths"),
    [
        ([1.0, np.nan, 2.0, 3.0], [2, 2]),
        ([np.nan, np.inf], []),
        ([1.0, "a text", 2.0], [2, 2]),
        ([5.0], [2]),
        ([1.0] * 1000, [144]),
        ([float(i) for i in range(1199)], [300]),
    ],
)
def test_curves_with_gaps_and_of_many_entries(values, lengths):
    text = page_content._chart("loss", "entry", {"a": (range(len(values)), values)})
    found = points(text)
    assert [len(line) for line in found] == lengths
    assert np.isfinite([x for line in found for point in line for x in point]).all()
    assert f"a: {values[-1]:.5g}" in text


def test_a_single_large_value_among_many_is_seen():
    text = page_content._chart(
        "loss", "entry", {"a": (range(1000), [1.0] * 501 + [1e6] + [1.0] * 498)}
    )
    assert ">1e+06</text>" in text
    assert min(y for line in points(text) for _, y in line) == 15


# -- server ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_options", "expected"),
    [
        *(({"path": path}, 404) for path in ("content/", "x", "../content", "content?a=1")),
        ({"path": "%63ontent"}, 404),
        *(
            ({"path": "content", "token": token}, 404)
            for token in ("", "x", "A" * 32, "..", "{token:.31}")
        ),
        *(({"method": name}, 405) for name in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS", "X")),
        ({"host": "evil.example:{port}"}, 403),
        ({"host": "127.0.0.1"}, 403),
        ({"host": "localhost:{port}"}, 200),
    ],
    ids=str,
)
def test_what_is_answered(look, request_options, expected):
    """Nothing else than the page, to nobody without the token, and under no foreign name."""
    status, headers, text = look(lambda page: ask(page, **request_options))
    assert status == expected
    assert ("Epoch" in text) == (status == 200)
    assert status != 404 or text == "not found"
    assert headers.get("Allow") == ("GET" if status == 405 else None)


def test_the_script_is_a_page_of_its_own_and_browsers_are_told_to_do_nothing_else(look):
    (_, headers, _), (status, kind, text) = look(lambda page: (ask(page), ask(page, "page.js")))
    assert (status, text) == (200, page_content.SCRIPT)
    assert kind["Content-Type"].startswith("text/javascript")
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "'unsafe-inline'" not in headers["Content-Security-Policy"].partition("script-src")[2]
    assert headers["Cache-Control"] == "no-store"
    assert "Access-Control-Allow-Origin" not in headers
    assert "Python" not in headers["Server"]


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x00\xff\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9\r\n\r\n",
        b"GET /" + b"a" * 70000,
        "GET /é/content HTTP/1.0\r\n\r\n".encode(),
    ],
)
def test_what_is_no_http_is_harmless(look, request_bytes, capsys):
    def both(page):
        answer = b""
        with (
            contextlib.suppress(ConnectionError),
            socket.create_connection(("127.0.0.1", place_of(page)[0]), timeout=60) as connection,
        ):
            connection.sendall(request_bytes)
            answer = connection.recv(1000)
        return answer, ask(page)[0]

    answer, status = look(both)
    assert status == 200
    assert b"Epoch" not in answer
    assert capsys.readouterr() == ("", "")


def test_idle_connections_make_room_for_others(look, monkeypatch):
    """Of which there are never more than so many, long before they are closed for being idle."""
    monkeypatch.setattr(page_server._Request, "timeout", 600)
    monkeypatch.setattr(page_server._Server, "request_queue_size", 64)  # else clients wait seconds

    def occupy(page):
        address = "127.0.0.1", place_of(page)[0]
        idle = [socket.create_connection(address, timeout=60) for _ in range(40)]
        try:
            answers = [ask(page)[0] for _ in range(3)]
            ended = [connection.recv(1) == b"" for connection in idle[:25]]
            for _ in range(600):  # a connection is closed before its thread is over
                waiting = [t for t in threading.enumerate() if "process_request" in t.name]
                if len(waiting) <= page_server.MOST_CONNECTIONS:
                    break
                time.sleep(0.1)
            return answers, ended, len(waiting)
        finally:
            for connection in idle:
                connection.close()

    answers, ended, waiting = look(occupy)
    assert answers == [200] * 3
    assert all(ended)
    assert waiting <= page_server.MOST_CONNECTIONS


# -- life -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [StopIteration("enough"), RuntimeError("broken")])
def test_it_closes_with_the_training(train, error):
    page, ports = LivePage(verbose=False), []

    def stop(page):
        ports.append(place_of(page)[0])
        raise error

    is_raised = isinstance(error, RuntimeError)
    with pytest.raises(RuntimeError, match="broken") if is_raised else contextlib.nullcontext():
        train(page, looking(page, stop, at=2))
    assert page.address is None
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", *ports))
    assert not [t for t in threading.enumerate() if t.name == "brainstorm-page"]


def test_neither_slow_clients_nor_copies_of_its_socket_outlast_it(monkeypatch):
    monkeypatch.setattr(page_server._Request, "timeout", 600)
    server = page_server.PageServer({})
    address = server._server.socket.getsockname()
    with socket.create_connection(address, timeout=60) as slow, server._server.socket.dup():
        slow.sendall(b"GET / HTTP/1.1\r\n")
        while not (threads := [t for t in threading.enumerate() if "process_request" in t.name]):
            time.sleep(0.01)
        server.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        threads[0].join(60)
        assert not threads[0].is_alive()
        page_server.PageServer({}, address[1]).close()


def test_the_address_is_printed_is_of_this_machine_and_another_one_each_time(train, capsys):
    page, addresses = LivePage(), []

    def look(page):
        addresses.append(page.address)
        assert page._server._server.socket.getsockname()[0] == "127.0.0.1"

    for _ in range(2):
        train(page, looking(page, look, at=0), epochs=1)
        assert capsys.readouterr().out == f"LivePage >> {addresses[-1]}\n"
    assert len(set(addresses)) == 2


def test_a_port_that_is_taken(train):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with refused(f"port: expected one that is free, got {port}"):
            train(LivePage(port))
