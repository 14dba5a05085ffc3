"""Servers that tests share. Each is started when the first test wants it, and must end cleanly."""
import pytest
from parrot import make_parrot_model, make_random_model
from server import Server


@pytest.fixture(scope="session")
def new_folder(tmp_path_factory):
    return lambda name: tmp_path_factory.mktemp(name)


@pytest.fixture(scope="session")
def start(senko, new_folder):
    """start(*flags, model=None): a server that ends with the session, unless its test ended it."""
    started = []

    def begin(*flags, **options):
        server = Server(senko, new_folder("server"), *flags, **options)
        started.append(server)
        return server

    yield begin
    for server in started:
        server.kill()


@pytest.fixture(scope="session")
def running(start):
    """A module's server: `with running(*flags) as server`, checked for a clean end."""
    import contextlib

    @contextlib.contextmanager
    def run(*flags, **options):
        server = start(*flags, **options)
        try:
            yield server
            server.stop()
        finally:
            server.kill()

    return run


@pytest.fixture(scope="session")
def bundled(running):
    """The bundled random model. One thread: tests share their machine, and threads that wait for each other do not."""
    with running("--threads", 1) as server:
        yield server


@pytest.fixture(scope="session")
def make_parrot(senko, new_folder):
    """make_parrot(scripts): a model's folder."""
    return lambda scripts, **changes: make_parrot_model(senko, new_folder("parrot"), scripts, **changes)


@pytest.fixture(scope="session")
def small_model(senko, new_folder):
    return make_random_model(senko, new_folder("small"))


@pytest.fixture(scope="session")
def small(running, small_model):
    """A server of the small random model."""
    with running("--threads", 1, model=small_model) as server:
        yield server
