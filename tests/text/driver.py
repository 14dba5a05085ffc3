"""Speaks with text_tool: requests out as JSON lines, answers back in order."""

import json
import pathlib
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
V41 = ROOT / ".cache/tokenizers/deepseek-v4.1/tokenizer.json"
TINY = ROOT / "models/tiny/tokenizer.json"


def ask(tool, tokenizer, requests, folder=None):
    command = [str(tool), str(tokenizer)] + ([str(folder)] if folder else [])
    with tempfile.TemporaryFile("w+", encoding="utf-8") as questions:
        for request in requests:
            questions.write(json.dumps(request) + "\n")
        questions.seek(0)
        run = subprocess.run(command, stdin=questions, capture_output=True, check=True)
    answers = [json.loads(line) for line in run.stdout.decode().split("\n") if line]
    assert len(answers) == len(requests), (len(answers), len(requests))
    return answers
