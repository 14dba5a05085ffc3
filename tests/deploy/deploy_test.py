"""What `deploy/` and `docs/serving.md` say about the program holds for the program."""
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import time
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).parents[2]
UNIT = ROOT / "deploy" / "senko.service"
CONTAINER = ROOT / "deploy" / "Containerfile"
SERVING = ROOT / "docs" / "serving.md"
START_SECONDS = 120  # of a machine that is busy with other things
OPTION = r"(?<![\w-])--[a-z][a-z0-9-]*"


def unit_values(key):
    return re.findall(rf"^{key}=(.*)$", UNIT.read_text(), re.MULTILINE)


def container_lines():
    """Instructions, each as one line."""
    text = re.sub(r"^#.*\n", "", CONTAINER.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [line.split(None, 1) for line in text.splitlines() if line.strip()]


@pytest.fixture(scope="module")
def help_text(senko):
    return subprocess.run([senko, "serve", "--help"], check=True, stdout=subprocess.PIPE, text=True).stdout


def default_of(help_text, option):
    return int(re.search(rf"{option} INT=(\d+)", help_text)[1])


def run_until_ready(command, folder, **how):
    """Starts it on a port that is free, sees it ready, drains it as systemd and podman do; what it wrote."""
    log = folder / "log"
    with open(log, "wb") as file:
        process = subprocess.Popen([*command, "--port", "0", "--threads", "1"], stdin=subprocess.DEVNULL, stdout=file,
                                   stderr=file, **how)
    try:
        end = time.monotonic() + START_SECONDS
        while not (ready := re.search(r"senko: ready", log.read_text())):
            assert process.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.02)
        port = re.search(r"listening on http://\S+:(\d+)", log.read_text())[1]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=60) as answer:
            assert ready and answer.status == 200
        process.terminate()
        assert process.wait(timeout=60) == 0, log.read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    return log.read_text()


def bundled(senko):
    return senko.parents[1] / "models" / "bundled"


def test_the_unit_starts_the_program(senko, tmp_path):
    program, *arguments = unit_values("ExecStart")[0].split()
    assert program == "/usr/local/bin/senko" and arguments[-1] == "$SENKO_FLAGS"
    # The flags that its comment proposes, for a model that is here.
    flags = re.search(r'SENKO_FLAGS="([^"]*)"', UNIT.read_text())[1].split()
    where = flags.index("--model") + 1
    assert pathlib.PurePath(flags[where]).is_absolute()
    flags[where] = str(bundled(senko))
    log = run_until_ready([str(senko), *arguments[:-1], *flags], tmp_path)
    assert "listening on http://0.0.0.0:" in log


def test_the_unit_knows_how_the_program_ends(senko, help_text, tmp_path):
    seconds = default_of(help_text, "--shutdown-timeout")
    assert f"--shutdown-timeout seconds ({seconds})" in UNIT.read_text()
    assert int(unit_values("TimeoutStopSec")[0]) > seconds + 10, "killed before it has drained"
    assert unit_values("KillSignal") == ["SIGTERM"]  # run_until_ready: with code 0
    final = int(unit_values("RestartPreventExitStatus")[0])
    for flags in (["--no-such-flag"], ["--model", str(tmp_path / "none")], ["--max-num-seqs", "0"]):
        done = subprocess.run([senko, "serve", "--port", "0", *flags], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=START_SECONDS)
        assert done.returncode == final, done.stdout


def test_the_unit_is_well_formed(senko, tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze")
    unit = tmp_path / "senko.service"

    def verify(text):
        unit.write_text(text.replace("/usr/local/bin/senko", str(senko)))
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=60)
        # Of the units that it names, only this one is ours; an unknown key is a line, not an exit code.
        return done.returncode, [line for line in done.stdout.splitlines() if "senko" in line]

    assert verify(UNIT.read_text()) == (0, [])
    assert verify(UNIT.read_text().replace("NoNewPrivileges", "NoNewPrivilege"))[1]


def test_the_image_starts_the_program(senko, tmp_path):
    """The files where the image has them, and started as it starts them."""
    lines = container_lines()
    image = tmp_path / "image"
    copied = []
    for name, rest in lines:
        if name != "COPY" or not rest.startswith("--from=build"):
            continue
        _, source, target = rest.split()
        built = senko.parents[1] / pathlib.PurePath(source).relative_to("/src/build/release")
        assert built.exists(), source
        place = image / pathlib.PurePath(target).relative_to("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(built, place) if built.is_dir() else shutil.copy2(built, place)
        copied.append(target)
    run = " ".join(rest for name, rest in lines if name == "RUN")
    target, link = re.search(r"ln -s (\S+) (\S+)", run).groups()
    assert target in copied
    place = image / pathlib.PurePath(link).relative_to("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(image / pathlib.PurePath(target).relative_to("/"))
    read = {name: rest for name, rest in lines}
    command = shlex.split(read["ENTRYPOINT"].strip("[]").replace(",", " "))
    flags = shlex.split(read["CMD"].strip("[]").replace(",", " "))
    environment = {**os.environ, "PATH": f"{place.parent}:{os.environ['PATH']}"}
    command[0] = shutil.which(command[0], path=environment["PATH"])
    assert command[0] == str(place)
    log = run_until_ready([*command, *flags], tmp_path, env=environment, cwd="/")
    assert "listening on http://0.0.0.0:" in log


def test_the_image_says_what_the_program_does(help_text):
    read = {name: rest for name, rest in container_lines()}
    assert int(read["EXPOSE"]) == default_of(help_text, "--port")
    assert read["STOPSIGNAL"] == "SIGTERM"
    assert read["USER"] != "root"


def test_every_option_is_documented_and_every_documented_one_is_there(senko, help_text):
    options = set(re.findall(OPTION, help_text))
    assert len(options) > 40, help_text
    text = SERVING.read_text()
    missing = options - set(re.findall(OPTION, text)) - {"--help"}
    assert not missing, f"not in docs/serving.md: {sorted(missing)}"
    # Of the other commands that the document runs, too.
    known = set(options)
    for command in re.findall(r"senko (eval replay|chat|generate)\b", text):
        known |= set(re.findall(OPTION, subprocess.run([senko, *command.split(), "--help"], check=True,
                                                       stdout=subprocess.PIPE, text=True).stdout))
    for path in (SERVING, UNIT, CONTAINER):
        words = path.read_text()
        if path == CONTAINER:  # other programs' options stand there, too
            words = "\n".join(re.findall(r"^(?:.* senko (?=--host)|ENTRYPOINT|CMD)(.*)$", words, re.MULTILINE))
            assert "--host" in words
        words = re.sub(r"systemctl .*", "", words)
        unknown = set(re.findall(OPTION, words)) - (known if path == SERVING else options)
        assert not unknown, f"{path.name} names {sorted(unknown)}"
