"""Guides: both sides of translations compute the same, what tables name is there, servers serve."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import brainstorm as bs
import brainstorm.all
from brainstorm.ext.state_dicts import load_state_dict
from tests.trainings import run_threads

PAGE = Path(__file__).parent.parent / "docs" / "porting" / "pytorch.md"
BLOCK = re.compile(r"^```(py|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DATA = ("x", "y", "sequences", "signs")
NAMES = {
    "0.weight": {"Hidden": "0", "Last": "2"},
    "head.bias": {"Lower": "rnn.*_l0", "Upper": "rnn.*_l1", "Last": "head"},
}


def test_both_sides_of_the_page_on_pytorch(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8")
    ours, theirs, compared = {"__name__": "ours"}, {"__name__": "theirs"}, []
    for language, code in BLOCK.findall(text):
        if language == "py":
            for name in DATA:
                if name in ours:
                    theirs.setdefault(name, ours[name])
            exec(code, theirs)
            continue
        exec(code, ours)
        if "state_dict = {" in code:
            tensors = {name: torch.tensor(v).float() for name, v in ours["state_dict"].items()}
            theirs["model"].load_state_dict(tensors)
        if "trainer.train(" in code:
            learned = {name: t.numpy() for name, t in theirs["model"].state_dict().items()}
            (names,) = [names for key, names in NAMES.items() if key in learned]
            net = ours["net"]
            before = np.concatenate([value.ravel() for value in ours["state_dict"].values()])
            after = np.concatenate([value.ravel() for value in learned.values()])
            assert np.abs(after - before).max() > 0.05
            same = net.copy()
            load_state_dict(same, learned, names)
            np.testing.assert_allclose(same.get("parameters"), net.get("parameters"), atol=2e-5)
            compared.append(set(names))
    assert compared == [{"Hidden", "Last"}, {"Lower", "Upper", "Last"}]
    assert ours["accuracy"] == pytest.approx(theirs["accuracy"])


def names_in_the_last_column(page):
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("|") and not line.startswith("|---"):
            last = line.rstrip(" |").rpartition(" | ")[2]
            for code in re.findall(r"`([^`]+)`", last):
                yield from re.findall(r"(?<![\w.\"'])[A-Z][a-z]\w+", code)


@pytest.mark.parametrize("name", ["brainstorm_2015", "mocha", "neon", "pytorch"])
def test_what_tables_of_porting_name_is_there(name):
    known = {"AdaMax", "Dataset", "SplitLayer", "TrainingSummary"}  # of the others
    known |= {"Ca", "Conv", "False", "Hidden", "Last", "None", "True"}
    for module in (
        *(bs.all, bs.data_iterators, bs.handlers, bs.hooks, bs.initializers, bs.layers),
        *(bs.training, bs.value_modifiers, bs.structure, bs.scorers),
    ):
        known.update(module.__all__)
    names = set(names_in_the_last_column(PAGE.with_name(f"{name}.md")))
    assert names
    assert names <= known


# -- serving predictions --------------------------------------------------------------------------

SERVING = (PAGE.parent.parent / "howto" / "serve_predictions.md").read_text(encoding="utf-8")
CLIENTS, REQUESTS, SECONDS = 16, 8, 60


@pytest.fixture
def serving():
    """Return what the page on serving defines, with a server that runs on a free port."""
    _, code = BLOCK.findall(SERVING)[0]
    page = {"__name__": "page"}
    exec(code, page)
    net = bs.tools.create_net_from_spec("classification", 4, 3, "F20")
    server = page["PredictionServer"](("127.0.0.1", 0), net.predict)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield {**page, "net": net, "server": server}
    server.shutdown()
    server.server_close()
    thread.join(SECONDS)
    assert not thread.is_alive()


def post(port, body):
    """Return status and answer of a request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    with contextlib.closing(connection):
        connection.request("POST", "/", body)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def test_sixteen_clients_get_what_is_predicted_directly(serving):
    port, direct = serving["server"].server_port, serving["net"].copy()
    together, found = threading.Barrier(CLIENTS), []

    def client(number):
        rnd = np.random.RandomState(number)
        together.wait(SECONDS)
        for _ in range(REQUESTS):
            rows = rnd.normal(size=(rnd.randint(1, 9), 4))
            found.append((rows, *post(port, json.dumps({"rows": rows.tolist()}))))

    run_threads(client, CLIENTS)
    assert len(found) == CLIENTS * REQUESTS
    for rows, status, answer in found:
        assert status == 200
        np.testing.assert_array_equal(answer["predictions"], direct.predict(rows[np.newaxis])[0])


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ('{"rows": [[1, 2]]}', r"NetworkValidationError: data 'default': expected \(T, B, 4\).*"),
        ('{"rows": [[1, 2, 3, 4], [5]]}', "ValueError: .*"),
        ('{"rows": [[NaN, 0, 0, 0]]}', "ValueError: Out of range float values.*"),
        ('{"columns": []}', "KeyError: 'rows'"),
        ("[1, 2]", "TypeError: .*"),
        ("no JSON", "JSONDecodeError: .*"),
        ("[" * 100_000, "RecursionError: .*"),
        ("", "JSONDecodeError: .*"),
    ],
)
def test_requests_that_make_no_sense_are_refused_and_the_server_goes_on(serving, body, text):
    port = serving["server"].server_port
    status, answer = post(port, body)
    assert status == 400
    assert re.fullmatch(text, answer["error"], re.DOTALL), answer
    assert post(port, '{"rows": [[1, 2, 3, 4]]}')[0] == 200


@pytest.mark.parametrize(
    ("header", "text"),
    [
        (b"", b"TypeError: int()"),
        (b"Content-Length: many\r\n", b"ValueError: invalid literal"),
        (b"Content-Length: -1\r\n", b"ValueError: expected at most 1000000 bytes, got -1"),
        (b"Content-Length: 1000001\r\n",
         b"ValueError: expected at most 1000000 bytes, got 1000001"),
    ],
)  # fmt: skip
def test_what_is_too_long_is_not_read(serving, header, text):
    address = "127.0.0.1", serving["server"].server_port
    with socket.create_connection(address, timeout=SECONDS) as connection:
        connection.sendall(b"POST / HTTP/1.0\r\n" + header + b"\r\n")
        answer = b"".join(iter(lambda: connection.recv(1000), b""))
    assert b" 400 Bad Request\r\n" in answer
    assert text in answer


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_processes_that_are_forked_share_a_socket():
    """Each says who it is, and answers with that; all are ended by their parent."""
    blocks = BLOCK.findall(SERVING)
    (forking,) = [code for language, code in blocks if language == "py"]
    changes = {
        "8000": "0",
        "os.cpu_count()": "3",
        "net.predict)": "lambda rows: rows[..., :1] * 0 + os.getpid())",
        "server.serve": (  # one write, which the lines of others do not interrupt
            "os.write(1, b'%d %d\\n' % (server.server_port, os.getpid()))\nserver.serve"
        ),
    }
    for old, new in changes.items():
        assert old in forking
        forking = forking.replace(old, new)
    command = [sys.executable, "-c", blocks[0][1] + forking]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as parent:
        try:
            lines = [parent.stdout.readline().split() for _ in range(3)]
            ports, processes = zip(*((int(port), int(own)) for port, own in lines), strict=True)
            for _ in range(40):
                status, answer = post(ports[0], '{"rows": [[1]]}')
                assert status == 200
                assert answer["predictions"][0][0] in processes
        finally:
            os.killpg(parent.pid, signal.SIGKILL)
    assert len(set(processes)) == 3
    assert len(set(ports)) == 1
