"""Options and fixtures of the Python tests."""
import pathlib

import pytest


def pytest_addoption(parser):
    parser.addoption("--senko", help="path of the senko program; tests that run it are skipped without")
    parser.addoption("--load-seconds", type=float, help="a load of 256 streams on the bundled model, that long")
    parser.addoption("--clients", help="folder of the virtual environments that tests/clients needs; skipped without")
    parser.addoption("--long", action="store_true", help="also the lengths that take many minutes")


@pytest.fixture(scope="session")
def senko(request):
    """Path of the senko program."""
    program = request.config.getoption("--senko")
    if program is None:
        pytest.skip("no --senko")
    return pathlib.Path(program).resolve()


def pytest_sessionfinish(session, exitstatus):
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED  # a run without tests proves nothing
