"""A `senko serve` process under test, and what a client without any library sees of it."""
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import struct
import subprocess
import threading
import time

START_SECONDS = 60  # of a machine that is busy with other things
REPLY_SECONDS = 60


class Reply:
    """A whole HTTP answer."""

    def __init__(self, status, headers, body, seconds):
        self.status = status
        self.headers = headers
        self.body = body
        self.seconds = seconds

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        return self.json["error"]

    def __repr__(self):
        return f"Reply({self.status}, {self.body[:500]!r})"


class Server:
    """Starts at once; ready when the constructor returns. `flags` are those of `senko serve`."""

    def __init__(self, senko, folder, *flags, model=None, wait=True):
        folder = pathlib.Path(folder)
        command = [str(senko), "serve", "--port", "0", "--access-log", str(folder / "access.log")]
        if model is not None:
            command += ["--model", str(model)]
        command += [str(flag) for flag in flags]
        self.log = folder / "stderr.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            self.port = int(self._await_line(rb"listening on http://127\.0\.0\.1:(\d+)").group(1))
            if wait:
                self.wait_ready()
        except BaseException:
            self.kill()
            raise

    def _await_line(self, pattern):
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            found = re.search(pattern, self.log.read_bytes())
            if found:
                return found
            if self.process.poll() is not None:
                break
            time.sleep(0.01)
        raise AssertionError(f"no {pattern!r}, exit code {self.process.poll()}: {self.errors()}")

    def wait_ready(self):
        self._await_line(rb"senko: ready")

    def errors(self):
        return self.log.read_text(errors="replace")

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self):
        return self.process.pid

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def wait_exit(self, seconds=30):
        return self.process.wait(timeout=seconds)

    def stop(self):
        """Ends it; anything but a clean exit is a failure of whoever used it."""
        if self.process.poll() is None:
            self.signal()
        code = self.wait_exit()
        assert code == 0, f"exit code {code}: {self.errors()[-2000:]}"

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    # One request on a connection of its own.

    def request(self, method, path, body=None, headers=None, seconds=REPLY_SECONDS):
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
        if isinstance(body, str):
            body = body.encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        begin = time.monotonic()
        try:
            connection.request(method, path, body, {"Content-Type": "application/json", **(headers or {})})
            answer = connection.getresponse()
            data = answer.read()
            return Reply(answer.status, answer.headers, data, time.monotonic() - begin)
        finally:
            connection.close()

    def post_all(self, requests, seconds=REPLY_SECONDS):
        """Many small POSTs, sent ahead on one connection; their answers in order. Much faster than one at a time where
        every turn of a client waits for its turn on the processor."""
        replies = []
        with socket.create_connection(("127.0.0.1", self.port), timeout=seconds) as connection:
            answers = connection.makefile("rb")
            for batch in range(0, len(requests), 24):
                data = b""
                for path, body in requests[batch:batch + 24]:
                    body = body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()
                    data += f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
                assert len(data) < 70_000, "more than a server has to take ahead"
                connection.sendall(data)
                for _ in requests[batch:batch + 24]:
                    status = answers.readline().split()
                    assert status, "the connection ended"
                    headers = http.client.parse_headers(answers)
                    if "Content-Length" in headers:
                        body = answers.read(int(headers["Content-Length"]))
                    else:
                        body = b""
                        while size := int(answers.readline(), 16):
                            body += answers.read(size)
                            answers.readline()
                        answers.readline()
                    replies.append(Reply(int(status[1]), headers, body, None))
        return replies

    def get(self, path, **options):
        return self.request("GET", path, **options)

    def post(self, path, body, **options):
        return self.request("POST", path, body, **options)

    def ask(self, path, **body):
        """A JSON answer that must be a success."""
        reply = self.post(path, body)
        assert reply.status == 200, reply
        return reply.json

    def complete(self, prompt, **fields):
        return self.ask("/v1/completions", **{"prompt": prompt, "temperature": 0, **fields})

    def chat(self, messages, **fields):
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        return self.ask("/v1/chat/completions", **{"messages": messages, "temperature": 0, **fields})

    def events(self, path, seconds=REPLY_SECONDS, **body):
        """A whole stream's events, checked line by line."""
        with self.open_stream(path, seconds=seconds, **body) as stream:
            return list(stream)

    def open_stream(self, path, seconds=REPLY_SECONDS, headers=None, **body):
        return Stream(self, path, {**body, "stream": True}, seconds, headers)

    def metrics(self, headers=None):
        """Name (without labels and prefix) to value; histograms' buckets left out."""
        values = {}
        for line in self.get("/metrics", headers=headers).body.decode().splitlines():
            found = re.fullmatch(r"(?:senko:)?(\w+)(\{.*\})? (\S+)", line)
            if not found or found[1].endswith("_bucket"):
                continue
            reason = re.search(r'finished_reason="(\w+)"', found[2] or "")
            values[found[1] + (":" + reason[1] if reason else "")] = float(found[3])
        return values

    def wait_metric(self, name, wanted, seconds=10):
        """Until a metric is `wanted` (a value or a condition); returns the seconds that took."""
        begin = time.monotonic()
        while True:
            value = self.metrics()[name]
            if wanted(value) if callable(wanted) else value == wanted:
                return time.monotonic() - begin
            assert time.monotonic() - begin < seconds, f"{name} is still {value} after {seconds} s"
            time.sleep(0.01)

    def cpu_seconds(self):
        """Of all its threads, as the kernel counts them in hundredths."""
        times = pathlib.Path(f"/proc/{self.pid}/stat").read_text().rsplit(") ", 1)[1].split()
        return (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")

    def memory_bytes(self):
        """Resident memory."""
        status = pathlib.Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status).group(1)) << 10

    def wait_files(self, most, seconds=5):
        """Until no more files are open than that: a connection that its client has closed stays for a moment."""
        end = time.monotonic() + seconds
        while self.open_files() > most:
            assert time.monotonic() < end, f"{self.open_files()} files are open, {most} were"
            time.sleep(0.01)

    def open_files(self):
        return len(list(pathlib.Path(f"/proc/{self.pid}/fd").iterdir()))


class Stream:
    """Server-sent events, read strictly: every line is an event's name, well-formed JSON, or a comment."""

    def __init__(self, server, path, body, seconds, headers):
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=seconds)
        # Kept apart: the connection forgets it when the answer says that it is the last.
        self.connection.connect()
        self.socket = self.connection.sock
        self.connection.request("POST", path, json.dumps(body).encode(),
                                {"Content-Type": "application/json", **(headers or {})})
        self.answer = self.connection.getresponse()
        self.status = self.answer.status
        self.comments = 0
        self.done = False
        if self.status != 200:
            reply = self.answer.read()
            self.close()
            raise AssertionError(f"{self.status}: {reply[:1000]!r}")
        assert self.answer.headers["Content-Type"].startswith("text/event-stream")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __iter__(self):
        return self

    def __next__(self):
        """The next event: {"event": name or None, **data}."""
        name = None
        while True:
            raw = self.answer.readline()
            if not raw:
                raise StopIteration
            assert raw.endswith(b"\n"), raw
            line = raw[:-1].decode("utf-8")  # strict
            if line == "":
                continue
            if line.startswith(":"):
                self.comments += 1
                continue
            if line.startswith("event: "):
                name = line[7:]
                continue
            assert line.startswith("data: "), line
            assert not self.done, f"behind [DONE]: {line}"
            if line == "data: [DONE]":
                self.done = True
                continue
            event = json.loads(line[6:])
            event["event"] = name
            return event

    def reset(self):
        """Leaves at once, as a client that was killed does: RST, not FIN."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self):
        self.answer.close()
        self.connection.close()
        self.socket.close()


def raw(server, data, seconds=10, until_close=True):
    """Sends bytes and returns all that comes back."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=seconds) as connection:
        connection.sendall(data)
        received = b""
        while True:
            try:
                part = connection.recv(65536)
            except ConnectionResetError:
                break
            received += part
            if not part or (not until_close and b"\r\n\r\n" in received):
                break
        return received


def together(count, work, seconds=60):
    """work(0) .. work(count - 1), each on a thread of its own and begun at the same time; their results in order."""
    results = [None] * count
    barrier = threading.Barrier(count)

    def run(i):
        try:
            barrier.wait()
            results[i] = work(i)
        except BaseException as error:  # shown by whoever asked
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(count)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
        assert not thread.is_alive(), f"not done after {seconds} s"
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
