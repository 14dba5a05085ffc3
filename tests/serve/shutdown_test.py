"""Start and end: what /health and /ready say, what a signal does to running requests, exit codes."""
import contextlib
import fcntl
import http.client
import json
import os
import pty
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest
from parrot import bytes_of

LONG = {"prompt": "go", "max_tokens": 30_000, "ignore_eos": True}


def test_running_requests_finish(start, small_model):
    """In prefill, in decode, waiting, streamed and not: all get their whole answers; new ones are refused."""
    server = start("--threads", 1, "--max-num-seqs", 2, "--max-num-batched-tokens", 64, model=small_model)
    whole = []
    with server.open_stream("/v1/completions", prompt="decode", max_tokens=150, ignore_eos=True) as decode:
        next(decode)
        long = {"prompt": "a long prompt " * 120, "max_tokens": 3, "ignore_eos": True}
        prefill = server.open_stream("/v1/completions", **long)
        waiting = threading.Thread(
            target=lambda: whole.append(server.post("/v1/completions", {"prompt": "w", "max_tokens": 3})))
        waiting.start()
        end = time.monotonic() + 10
        while True:  # all three are in, whichever of them waits
            metrics = server.metrics()
            if metrics["num_requests_running"] + metrics["num_requests_waiting"] >= 3:
                break
            assert time.monotonic() < end
        server.signal(signal.SIGTERM)
        end = time.monotonic() + 10
        while server.get("/ready").status != 503:
            assert time.monotonic() < end
        refused = server.post("/v1/completions", {"prompt": "new"})
        assert refused.status == 503 and int(refused.headers["Retry-After"]) >= 1
        assert server.get("/health").status == 200
        events = list(decode)
        assert events[-1]["choices"][0]["finish_reason"] == "length" and decode.done
        with prefill:
            events = list(prefill)
            assert events[-1]["choices"][0]["finish_reason"] == "length" and prefill.done
        waiting.join(30)
        assert whole and whole[0].status == 200 and whole[0].json["usage"]["completion_tokens"] == 3
    assert server.wait_exit() == 0
    assert "all requests finished" in server.errors()


def test_a_slow_reader_gets_its_answer(start):
    server = start("--threads", 1)
    with server.open_stream("/v1/completions", prompt="slow", max_tokens=60, ignore_eos=True) as stream:
        next(stream)
        server.signal(signal.SIGINT)
        time.sleep(1)
        events = list(stream)
        assert events[-1]["choices"][0]["finish_reason"] == "length" and stream.done
    assert server.wait_exit() == 0


@pytest.mark.parametrize("numbers", [(signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGTERM)])
def test_a_second_signal_ends_now(start, numbers):
    server = start("--threads", 1)
    with server.open_stream("/v1/completions", **LONG) as stream:
        next(stream)
        server.signal(numbers[0])
        end = time.monotonic() + 10
        while "finishing running requests" not in server.errors():
            assert time.monotonic() < end
            time.sleep(0.01)
        next(stream)
        begin = time.monotonic()
        server.signal(numbers[1])
        assert server.wait_exit() == 0
        assert time.monotonic() - begin < 5
    assert "unfinished" in server.errors()


def test_the_time_to_finish_has_an_end(start):
    server = start("--threads", 1, "--shutdown-timeout", 1)
    with server.open_stream("/v1/completions", **LONG) as stream:
        next(stream)
        begin = time.monotonic()
        server.signal()
        assert server.wait_exit() == 0
        assert 0.9 < time.monotonic() - begin < 10


@contextlib.contextmanager
def looked_at(server, path):
    """Somebody asks for `path` again and again; who is gone answers nobody."""
    gone = threading.Event()

    def look():
        while not gone.is_set():
            try:
                server.get(path, seconds=5)
            except (OSError, http.client.HTTPException):
                time.sleep(0.01)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        gone.set()
        thread.join()


def test_slow_readers_and_open_streams_at_the_end(start, small_model):
    """Clients that take nothing, clients that read, and one that looks at the metrics while the time to finish ends: the
    rest is dropped, whoever still had to be told, and the exit is clean. A program built with AddressSanitizer shows
    here that the server, the engine and what both call go in the right order."""
    server = start("--threads", 1, "--max-num-seqs", 16, "--shutdown-timeout", 1, model=small_model)
    body = json.dumps({**LONG, "stream": True, "n": 2, "logprobs": 20}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    with contextlib.ExitStack() as clients:
        clients.enter_context(looked_at(server, "/metrics"))
        for _ in range(6):
            connection = clients.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=20))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            connection.sendall(head + body)
        streams = [clients.enter_context(server.open_stream("/v1/completions", **LONG)) for _ in range(4)]
        next(streams[0])
        server.signal()
        assert server.wait_exit() == 0
    assert "unfinished" in server.errors()


def test_a_load_that_fails_while_clients_ask(start, small_model, new_folder):
    """The engine is there and the tokenizer is not: the message and exit code 2, whoever is being answered."""
    model = new_folder("no_tokenizer") / "model"
    shutil.copytree(small_model, model)
    (model / "tokenizer.json").write_text("{}")
    server = start("--threads", 1, model=model, wait=False)
    with looked_at(server, "/metrics"), looked_at(server, "/health"):
        assert server.wait_exit() == 2
    assert "tokenizer.json" in server.errors()


def test_idle_connections_do_not_hold_it(start):
    server = start("--threads", 1)
    with socket.create_connection(("127.0.0.1", server.port)), socket.create_connection(("127.0.0.1", server.port)):
        server.stop()


def test_an_unfinished_call_and_then_a_signal(make_parrot, start):
    """A script that ends inside a parameter's tag: answered, and the process can still be ended."""
    from parrot import DSML
    text = f'\n\n<{DSML} calls>\n<{DSML} invoke name="f">\n<{DSML} parameter name="x" string="true">never cl'
    server = start("--threads", 1, model=make_parrot({"</think>": bytes_of(text, 5), "<think>": (["on "], "loop")}))
    answer = server.chat("hi", reasoning_effort="none")["choices"][0]
    assert answer["finish_reason"] in ("stop", "length") and answer["message"]["tool_calls"]
    with server.open_stream("/v1/chat/completions", messages=[{"role": "user", "content": "hi"}]) as stream:
        next(stream)
        server.signal(signal.SIGINT)
        server.signal(signal.SIGTERM)
        assert server.wait_exit() == 0


def test_live_at_once_and_ready_when_loaded(start):
    """A model that takes a moment: alive meanwhile, not ready, and nobody is answered wrongly."""
    server = start("--threads", 1, wait=False)
    states = set()
    end = time.monotonic() + 60
    while True:
        assert server.get("/health").status == 200
        ready, models = server.get("/ready"), server.get("/v1/models")
        assert ready.status in (200, 503) and models.status in (200, 503)
        if ready.status == 503:
            assert int(ready.headers["Retry-After"]) >= 1 and ready.json["reason"]
        if models.status == 200:
            assert server.get("/ready").status == 200
        states.add(ready.status)
        if ready.status == 200:
            break
        assert time.monotonic() < end
    assert server.complete("a", max_tokens=1)["usage"]["completion_tokens"] == 1
    server.stop()


def test_what_the_timeout_cuts_is_told_so(start, small_model):
    """Streams get an error event, whole answers and those in the queue a 503; the log does not blame the clients."""
    server = start("--threads", 1, "--max-num-seqs", 2, "--shutdown-timeout", 1, model=small_model)
    replies = []

    def whole():
        replies.append(server.post("/v1/completions", {**LONG, "prompt": "whole"}))

    with server.open_stream("/v1/completions", **LONG) as stream:
        next(stream)
        threads = [threading.Thread(target=whole) for _ in range(2)]  # one runs, one waits
        for thread in threads:
            thread.start()
        server.wait_metric("num_requests_waiting", 1)
        server.signal(signal.SIGTERM)
        last = list(stream)[-1]
        assert "shutting down" in last["error"]["message"], last
        for thread in threads:
            thread.join(30)
    assert [reply.status for reply in replies] == [503, 503]
    assert all(int(reply.headers["Retry-After"]) >= 1 for reply in replies)
    assert server.wait_exit() == 0
    assert "requests unfinished" in server.errors()
    lines = [json.loads(line) for line in (server.log.parent / "access.log").read_text().splitlines()]
    lines = [line for line in lines if line["path"] == "/v1/completions"]
    assert sorted(line["status"] for line in lines) == [200, 503, 503] and not any(line["gone"] for line in lines)


@pytest.mark.parametrize("kind, log", [("pipe", "-"), ("pipe", ""), ("terminal", "-")])
def test_a_standard_error_that_nobody_reads(senko, small_model, kind, log):
    """Neither the start nor requests nor the end waits for room in it; what is lost is counted."""
    command = [senko, "serve", "--port", "0", "--threads", "1", "--model", small_model, "--access-log", log]
    reader, writer = os.pipe() if kind == "pipe" else pty.openpty()
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=writer) as process:
        try:
            told, port = b"", None
            while port is None:
                told += os.read(reader, 1)
                if b"listening on " in told and told.endswith(b","):
                    port = int(told.rsplit(b":", 1)[1][:-1])
            if kind == "pipe":
                fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
            lost = 0
            end = time.monotonic() + 60
            while lost < 20 and time.monotonic() < end and log:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
                connection.request("GET", "/metrics")
                for text in connection.getresponse().read().decode().splitlines():
                    if text.startswith("senko:access_log_dropped_lines_total"):
                        lost = float(text.split()[-1])
            assert lost >= 20 or not log
            begin = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
            assert time.monotonic() - begin < 10
        finally:
            process.kill()
            os.close(reader)
            os.close(writer)


def test_an_error_that_nobody_reads(senko):
    """The exit code is there all the same."""
    reader, writer = os.pipe()
    size = fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.write(writer, b"x" * size)
    with subprocess.Popen([senko, "serve", "--port", "0", "--model", "/nowhere"], stderr=writer) as process:
        try:
            assert process.wait(20) == 2
        finally:
            process.kill()
            os.close(reader)
            os.close(writer)


def test_standard_files_that_are_closed(senko, small_model):
    """What the server opens first does not take their place, where a log would write over it."""
    script = f'exec "{senko}" serve --port 0 --threads 1 --model "{small_model}" --access-log - 0<&- 1>&- 2>&-'
    with subprocess.Popen(["bash", "-c", script]) as process:
        try:
            end = time.monotonic() + 30
            kinds = []
            while len(kinds) < 3 or "bash" in kinds[0]:
                assert time.monotonic() < end
                time.sleep(0.05)
                program = os.readlink(f"/proc/{process.pid}/exe")
                kinds = ["bash"] if "senko" not in program else [
                    os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in range(3)
                    if os.path.exists(f"/proc/{process.pid}/fd/{fd}")]
            assert kinds == ["/dev/null"] * 3
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()


@pytest.mark.parametrize("host, url", [("::1", "http://[::1]:"), ("[::1]", "http://[::1]:")])
def test_an_address_of_version_6(senko, small_model, host, url):
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    with subprocess.Popen([senko, "serve", "--host", host, "--port", "0", "--model", small_model, "--access-log", ""],
                          stderr=subprocess.PIPE) as process:
        try:
            lines = []
            while not lines or "ready" not in lines[-1]:
                lines.append(process.stderr.readline().decode())
                assert lines[-1], lines
            assert any(f"listening on {url}" in line for line in lines) and f"curl {url}" in lines[-1]
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0


@pytest.mark.parametrize("delay", [0, 0.01, 0.03, 0.1, 0.3])
def test_a_signal_while_loading(start, delay):
    """Nothing runs that could be finished: the end is at once, whatever loading has got to."""
    server = start("--threads", 1, wait=False)
    time.sleep(delay)
    begin = time.monotonic()
    server.signal(signal.SIGTERM)
    assert server.wait_exit() == 0
    assert time.monotonic() - begin < 5


def test_settings_are_told(start):
    """Each with what it is and where it comes from; no secret."""
    server = start("--threads", 1, "--no-swa-bounded-replay", "--decoder-replay", "halo", "--api-key", "hush-hush",
                   "--default-thinking", wait=False)
    server.wait_ready()
    lines = dict(line.removeprefix("senko: ").split(": ", 1)
                 for line in server.log.read_text().splitlines() if " = " in line)
    assert set(lines) == {"command line", "default", "--no-swa-bounded-replay"}
    assert lines["--no-swa-bounded-replay"] == "encoder-replay = off"
    for setting in ("threads = 1", "decoder-replay = halo", "api-key = 1 given", "default-thinking = on"):
        assert setting in lines["command line"].split(", ")
    for setting in ("block-size = 128", "enable-prefix-caching = on", "timeout-header = 10", "model = none"):
        assert setting in lines["default"].split(", ")
    assert "hush" not in server.log.read_text()
    server.stop()


@pytest.mark.parametrize("flags, words", [
    (["--model", "/nowhere"], ["/nowhere"]),
    (["--kv-cache-memory-bytes", "1000"], ["kv-cache-memory-bytes", "64 slots", "3047424", "4390912"]),
    (["--max-model-len", "100000000"], ["max-model-len", "32768"]),
    (["--block-size", "100"], ["block-size"]),
    (["--port", "99999"], ["port"]),
    (["--host", ""], ["host", "0.0.0.0"]),
    (["--allowed-origins", "foo"], ["allowed-origins", "foo"]),
    (["--served-model-name", ""], ["served-model-name"]),
    (["--no-swa-bounded-replay", "--swa-bounded-replay"], ["swa-bounded-replay"]),
    (["--api-key", "two words"], ["api-key"]),
    (["--num-speculative-tokens", "7"], ["num-speculative-tokens"]),
    (["--tensor-parallel-size", "2"], ["tensor-parallel-size"]),
    (["--pipeline-parallel-size", "2"], ["pipeline-parallel-size"]),
    (["--max-num-seqs", "0"], ["max-num-seqs"]),
    (["--decoder-replay", "sometimes"], ["decoder-replay"]),
    (["--numerics", "fast"], ["numerics"]),
])
def test_settings_that_cannot_be(senko, flags, words):
    """Exit code 2 and one message that names the flag, and for memory the sums."""
    done = subprocess.run([senko, "serve", "--port", "0", *flags], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, (done.returncode, done.stderr)
    settings = ("senko: command line: ", "senko: default: ", "senko: listening on ")
    message = "\n".join(line for line in done.stderr.splitlines() if not line.startswith(settings))
    for word in words:
        assert word in message, done.stderr
    assert len(message) < 4000


def test_a_port_in_use(start, senko):
    server = start("--threads", 1)
    done = subprocess.run([senko, "serve", "--port", str(server.port)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and str(server.port) in done.stderr
    server.stop()
