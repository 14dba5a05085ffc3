"""`senko chat` at a terminal: what Ctrl-C does before, while and after a line is typed, and during an answer."""
import fcntl
import http.server
import json
import os
import pty
import select
import signal
import subprocess
import termios
import threading
import time

import pytest

LEAVES = "[Ctrl-C again, Ctrl-D or /quit leaves]"
CTRL_C, CTRL_D = "\x03", "\x04"


class FakeServer(http.server.ThreadingHTTPServer):
    """Repeats what it is asked. `endless` in a message: goes on until the client leaves."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked = []  # the messages of each request
        self.refusal = None  # the body of an error, instead of the models
        self.left = threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        body = self.server.refusal or json.dumps({"data": [{"id": "echo"}]}).encode()
        self.send_response(500 if self.server.refusal else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        messages = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"]
        self.server.asked.append(messages)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        said = messages[-1]["content"]
        if said == "evil":
            said += "\x1b]0;title\x07\x1b[2J\x9b31m\x7f\tü\n"
        try:
            self.event({"delta": {"content": f"<{said}>"}})
            while "endless" in said:
                self.event({"delta": {"content": "."}})
                time.sleep(0.01)
            self.event({"delta": {}, "finish_reason": "stop"})
        except OSError:
            self.server.left.set()

    def event(self, choice):
        self.wfile.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
        self.wfile.flush()


class Chat:
    """The program behind a terminal of its own."""

    def __init__(self, senko, port):
        self.terminal, inner = pty.openpty()
        self.process = subprocess.Popen([senko, "chat", "--url", f"http://127.0.0.1:{port}"], stdin=inner, stdout=inner,
                                        stderr=inner, start_new_session=True,
                                        preexec_fn=lambda: (signal.signal(signal.SIGINT, signal.SIG_DFL),
                                                            fcntl.ioctl(0, termios.TIOCSCTTY, 0)))
        self.inner = inner  # kept open, so that its settings can be looked at when the program has ended
        self.shown = ""  # not yet waited for
        self.wait_for("/help lists the commands")
        self.wait_for("> ")

    def type(self, text):
        os.write(self.terminal, text.encode())

    def wait_for(self, text, seconds=30):
        end = time.monotonic() + seconds
        while text not in self.shown:
            if select.select([self.terminal], [], [], 0.05)[0]:
                self.shown += os.read(self.terminal, 4096).decode(errors="replace")
            else:
                assert self.process.poll() is None and time.monotonic() < end, f"no {text!r} but {self.shown!r}"
        before, self.shown = self.shown.split(text, 1)
        return before

    def say(self, text):
        self.type(text + "\n")
        self.wait_for(f"<{text}>")
        self.wait_for("> ")

    def exit_code(self):
        return self.process.wait(timeout=30)

    def keeps_typed(self):
        return bool(termios.tcgetattr(self.inner)[3] & termios.NOFLSH)


@pytest.fixture
def server():
    with FakeServer() as running:
        yield running
        running.shutdown()


@pytest.fixture
def chat(senko, server):
    running = Chat(senko, server.server_address[1])
    yield running
    if running.process.poll() is None:
        running.process.kill()
        running.process.wait()
    os.close(running.inner)
    os.close(running.terminal)


def test_ctrl_c_discards_what_is_typed(chat, server):
    for words in ("first", "second"):  # as often as one likes: the line was not empty
        chat.type(words)
        chat.wait_for(words)
        chat.type(CTRL_C)
        chat.wait_for(LEAVES)
        chat.wait_for("> ")
    chat.say("third")
    assert [[m["content"] for m in messages] for messages in server.asked] == [["third"]]
    chat.type(CTRL_D)
    assert chat.exit_code() == 0


def test_two_on_an_empty_line_leave(chat):
    chat.type(CTRL_C)
    chat.wait_for(LEAVES)
    chat.wait_for("> ")
    chat.say("a line between")
    chat.type(CTRL_C)
    chat.wait_for(LEAVES)
    chat.wait_for("> ")
    chat.type(CTRL_C)
    assert chat.exit_code() == 130


def test_lines_of_one_message_go_together(chat, server):
    chat.type('"""\nlost\n')
    chat.wait_for("lost")
    chat.wait_for(". ")
    chat.type(CTRL_C)  # on an empty line, but the message is not
    chat.wait_for(LEAVES)
    chat.wait_for("> ")
    chat.type("also lost\\\n")
    chat.wait_for(". ")
    chat.type("half")
    chat.wait_for("half")
    chat.type(CTRL_C)
    chat.wait_for(LEAVES)
    chat.wait_for("> ")
    chat.say("kept")
    assert [[m["content"] for m in messages] for messages in server.asked] == [["kept"]]


def test_ctrl_c_stops_an_answer_only(chat, server):
    chat.type("endless\n")
    chat.wait_for("<endless>")
    chat.wait_for("...")
    chat.type(CTRL_C)
    chat.wait_for("[stopped]")
    assert LEAVES not in chat.wait_for("> ")
    assert server.left.wait(timeout=30)
    # One more is the first on an empty line.
    chat.type(CTRL_C)
    chat.wait_for(LEAVES)
    chat.wait_for("> ")
    chat.say("go on")
    kept = [m["content"] for m in server.asked[-1]]
    assert kept[0] == "endless" and kept[1].startswith("<endless>...") and kept[2:] == ["go on"]
    chat.type("/quit\n")
    assert chat.exit_code() == 0


def test_the_terminal_is_left_as_it_was(chat):
    end = time.monotonic() + 30
    while not chat.keeps_typed():  # as soon as it reads
        assert time.monotonic() < end
        time.sleep(0.005)
    chat.type("half" + CTRL_C)
    chat.wait_for(LEAVES)
    chat.wait_for("> ")
    chat.type(CTRL_C)
    assert chat.exit_code() == 130
    assert not chat.keeps_typed() and termios.tcgetattr(chat.inner)[3] & termios.ICANON


def test_a_terminal_obeys_nobody_else(chat, senko, server):
    """What a model writes is shown and not obeyed; a file or a pipe gets it as it is."""
    chat.type("evil\n")
    shown = chat.wait_for(">\r\n")
    assert shown.endswith("<evil␛]0;title␇␛[2J�31m␡\tü\r\n"), shown
    port = server.server_address[1]
    piped = subprocess.run([senko, "chat", "--url", f"http://127.0.0.1:{port}"], input="evil\n", capture_output=True,
                           text=True, timeout=60)
    assert "<evil\x1b]0;title\x07\x1b[2J\x9b31m\x7f\tü\n>" in piped.stdout


@pytest.mark.parametrize("as_json", [False, True])
def test_an_error_before_the_first_line(senko, server, as_json):
    """A refusal's words are shown whole and not obeyed either."""
    said = "\x1b]0;x\x07 no \0 models\x9b31m"
    server.refusal = json.dumps({"error": {"message": said}}).encode() if as_json else said.encode()
    command = [senko, "chat", "--url", f"http://127.0.0.1:{server.server_address[1]}"]
    master, inner = pty.openpty()
    try:
        done = subprocess.run(command, stdin=inner, stdout=inner, stderr=inner, timeout=60)
        shown = os.read(master, 4096).decode()
    finally:
        os.close(master)
        os.close(inner)
    assert done.returncode == 2
    assert shown.startswith("senko: http://127.0.0.1:"), shown
    assert shown.endswith("/v1/models: status 500: ␛]0;x␇ no ␀ models�31m\r\n"), shown
    piped = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert piped.returncode == 2
    assert piped.stderr.endswith("/v1/models: status 500: \x1b]0;x\x07 no ␀ models\x9b31m\n"), piped.stderr


def test_without_a_terminal(senko, server):
    command = [senko, "chat", "--url", f"http://127.0.0.1:{server.server_address[1]}"]
    done = subprocess.run(command, input=b'one\n"""\ntwo\nlines\n"""\nthe end', stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 0, done.stderr
    assert [messages[-1]["content"] for messages in server.asked] == ["one", "two\nlines\n", "the end"]
    assert done.stdout.decode() == "<one>\n<two\nlines\n>\n<the end>\n"
    assert done.stderr == b""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    process.stdin.write(b"one\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"<one>\n"
    time.sleep(0.2)  # it may still be with the answer, whose end one Ctrl-C is
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        time.sleep(0.05)
    assert process.returncode == 130
