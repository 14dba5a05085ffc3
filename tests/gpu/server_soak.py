#!/usr/bin/env python3
"""Runs `senko serve` under a crowd of mixed requests and checks what it leaves behind. Standard library alone.

    server_soak.py --senko build/cuda/bin/senko --model models/v41-flash-slim --seconds 300 -- \\
        --device cuda --load-format dummy --max-num-seqs 64
    server_soak.py --senko build/release/bin/senko --model MODEL --seconds 60 --most-prompt 400 -- --threads 1

What follows `--` goes to `senko serve`. N clients ask one thing after the other: prompts of token ids, short and long,
half of them behind a common prefix; greedy or drawn in any way, penalised, biased, barred, scored; one choice or
several; streamed or whole. Some leave before the answer ends, some before it begins.

Wrong is: a status of 5xx, or any other error; an answer without its end, its usage, or as many tokens as were asked
for; anything still held when all have gone; memory of the process or of the GPU that grew between the first and the
last third; an exit code other than 0 after SIGTERM. Prints a JSON object; exit code 1 if something was wrong, with the
reasons under "problems".

A model without a tokenizer (`--load-format dummy`) is given one that spells any of its ids, and a token map.
"""
import argparse
import asyncio
import json
import math
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "serve"))
import server  # noqa: E402
from load import HELD, Client, settle  # noqa: E402

SCORED = 300  # tokens of a prompt that is scored
PREFIXES = 6  # a fixed set, so that they are found again
SAMPLE_SECONDS = 1


def with_tokenizer(model, spelling, folder):
    """The model's files, and `spelling`'s tokenizer filled up with one word for each other id."""
    for file in model.iterdir():
        (folder / file.name).symlink_to(file.resolve())
    config = json.loads((model / "config.json").read_text())
    text = config.get("text_config", config)
    tokenizer = json.loads(spelling.read_text())
    vocab = tokenizer["model"]["vocab"]
    known = {token["id"] for token in tokenizer["added_tokens"]} | set(vocab.values())
    for number in range(text["vocab_size"]):
        if number not in known:
            vocab[f"w{number}"] = number
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    compressed = text.get("engram_compressed_vocab_size", 0)
    if compressed and not (folder / "engram_map.json").exists():
        (folder / "engram_map.json").write_text(json.dumps([i % compressed for i in range(text["vocab_size"])]))


def gpu_bytes():
    """Memory in use on the first GPU, or None."""
    try:
        out = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"],
                             capture_output=True, text=True, timeout=20, check=True).stdout
        return int(out) << 20
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


class Asking:
    """What the clients ask for. Ids stay below those that a model keeps for pictures."""

    def __init__(self, args, vocab):
        self.args = args
        self.most_id = max(8, vocab - 300)
        draw = random.Random(f"{args.seed} prefixes")
        self.prefixes = [self.ids(draw, max(1, args.most_prompt * (i + 1) // (2 * PREFIXES))) for i in range(PREFIXES)]

    def ids(self, draw, count):
        return [draw.randrange(3, self.most_id) for _ in range(count)]

    def body(self, draw):
        args = self.args
        prompt = list(draw.choice(self.prefixes)) if draw.random() < 0.5 else []
        room = args.most_prompt - len(prompt)
        least = min(args.least_prompt, room)
        prompt += self.ids(draw, max(1, round(math.exp(draw.uniform(math.log(least), math.log(room))))))
        body = {"prompt": prompt, "max_tokens": draw.randint(1, args.max_tokens), "ignore_eos": True,
                "n": draw.choice((1, 1, 1, 1, 2, 3)), "stream": draw.random() < 0.9}
        if body["stream"]:
            body["stream_options"] = {"include_usage": True}
        kind = draw.randrange(10)
        if kind == 0:
            body["temperature"] = 0
        else:
            body |= {"temperature": draw.uniform(0.2, 2), "seed": draw.randrange(1 << 40)}
        if kind == 2:
            body |= {"top_k": draw.choice((1, 20, 200))}
        elif kind == 3:
            body |= {"top_p": draw.uniform(0.05, 0.99), "min_p": draw.choice((0, 0.02))}
        elif kind == 4:
            body |= {"repetition_penalty": 1.1, "presence_penalty": 0.3, "frequency_penalty": 0.2}
        elif kind == 5:
            body |= {"logit_bias": {str(i): draw.uniform(-100, 5) for i in self.ids(draw, 300)}}
        elif kind == 6:
            body |= {"logprobs": draw.randint(0, 5)}
        elif kind == 7:
            body |= {"bad_words": ["a", "the", "w7 w9"], "top_p": 0.9, "top_k": 50}
        elif kind == 8:  # every row of the prompt is scored on the host, and it takes no hit
            body |= {"prompt": prompt[-SCORED:], "prompt_logprobs": draw.randint(0, 3), "stream": False}
            body.pop("stream_options", None)
        elif kind == 9:  # more choices than begin at once
            body |= {"n": 40, "max_tokens": min(body["max_tokens"], 4)}
        return body


def judge(body, events):
    """What is wrong with a complete answer, or None. `events`: its chunks, or the one object."""
    text, ends, usage = {}, {}, None
    for event in events:
        if "error" in event:
            return f"error: {event['error'].get('message')}"
        for choice in event["choices"]:
            text[choice["index"]] = text.get(choice["index"], "") + choice["text"]
            if choice["finish_reason"] is not None:
                if choice["index"] in ends:
                    return "a choice that ends twice"
                ends[choice["index"]] = choice["finish_reason"]
        usage = event.get("usage") or usage
    if set(ends) != set(range(body["n"])):
        return f"{len(ends)} of {body['n']} choices ended"
    if any(reason != "length" for reason in ends.values()):
        return f"finish reasons {sorted(set(ends.values()))}"
    if usage is None:
        return "no usage"
    if usage["prompt_tokens"] != len(body["prompt"]):
        return f"{usage['prompt_tokens']} prompt tokens instead of {len(body['prompt'])}"
    if usage["completion_tokens"] != body["n"] * body["max_tokens"]:
        return f"{usage['completion_tokens']} tokens instead of {body['n']} times {body['max_tokens']}"
    return None


class Soak:
    def __init__(self, args, client, asking):
        self.args, self.client, self.asking = args, client, asking
        self.finished = self.left = self.tokens = 0
        self.errors = {}
        self.samples = []  # (seconds, resident bytes, bytes of the GPU)
        self.most_running = 0

    def error(self, what):
        self.errors[what] = self.errors.get(what, 0) + 1

    async def ask(self, body, leave_after):
        reader, writer = await self.client.open("POST", "/v1/completions", json.dumps(body).encode())
        try:
            if leave_after == 0:
                self.left += 1
                return
            status = (await reader.readline()).split()
            if len(status) < 2 or status[1] != b"200":
                return self.error(f"status {status[1].decode() if len(status) > 1 else 'none'}")
            while (await reader.readline()).strip():
                pass
            events, done = [], not body["stream"]
            if body["stream"]:
                while line := await reader.readline():
                    if line == b"data: [DONE]\n":
                        done = True
                    elif line.startswith(b"data: "):
                        events.append(json.loads(line[6:]))
                        if len(events) == leave_after:
                            self.left += 1
                            return
            else:
                events.append(json.loads(await reader.read()))
            wrong = judge(body, events) if done else "a stream without its end"
            if wrong:
                return self.error(wrong)
            self.finished += 1
            self.tokens += body["n"] * body["max_tokens"]
        finally:
            if random.random() < 0.5:
                writer.transport.abort()  # RST where something is still unread
            writer.close()

    async def worker(self, number, end):
        draw = random.Random(f"{self.args.seed} {number}")
        while time.monotonic() < end:
            body = self.asking.body(draw)
            leaves = draw.random() < self.args.leave
            leave = draw.randint(0, body["max_tokens"]) if leaves and (body["stream"] or draw.random() < 0.3) else None
            if leave and not body["stream"]:
                leave = 0
            try:
                await asyncio.wait_for(self.ask(body, leave), self.args.patience)
            except (OSError, ValueError, KeyError, asyncio.TimeoutError, asyncio.LimitOverrunError) as error:
                self.error(type(error).__name__)
                await asyncio.sleep(0.1)

    async def watch(self, begin, end):
        while time.monotonic() < end:
            await asyncio.sleep(SAMPLE_SECONDS)
            try:
                metrics = await self.client.metrics()
            except (OSError, IndexError, asyncio.TimeoutError) as error:
                self.error(f"/metrics: {type(error).__name__}")
                continue
            gpu = await asyncio.to_thread(gpu_bytes)
            self.samples.append((time.monotonic() - begin, metrics["process_resident_memory_bytes"], gpu))
            self.most_running = max(self.most_running, int(metrics["num_requests_running"]))

    def growth(self, column):
        """The most of the last third above the most of the first, as both in MiB; None where nothing was seen."""
        values = [(sample[0], sample[column]) for sample in self.samples if sample[column] is not None]
        if len(values) < 6:
            return None
        third = len(values) // 3
        return [round(max(v for _, v in part) / (1 << 20), 1) for part in (values[:third], values[-third:])]


async def run(args, running, vocab):
    client, problems = Client(running.url, None), []
    first = await client.metrics()
    idle = {name: first[name] for name in HELD}
    if any(idle.values()):
        problems.append(f"held before the first request: {idle}")
    soak = Soak(args, client, Asking(args, vocab))
    begin = time.monotonic()
    end = begin + args.seconds
    await asyncio.gather(soak.watch(begin, end), *(soak.worker(i, end) for i in range(args.streams)))
    seconds = time.monotonic() - begin
    last = await settle(client, problems, 30)

    def moved(name):
        return int(last[name] - first[name])

    host, gpu = soak.growth(1), soak.growth(2)
    for what, seen in (("the process", host), ("the GPU", gpu)):
        if seen is not None and seen[1] - seen[0] > args.growth_mib:
            problems.append(f"memory of {what} grew from {seen[0]} to {seen[1]} MiB")
    if soak.errors:
        problems.append("errors")
    if soak.finished == 0:
        problems.append("nothing finished")
    return problems, {
        "seconds": round(seconds, 1), "finished": soak.finished, "left": soak.left, "errors": soak.errors,
        "tokens_per_second": round(moved("generation_tokens_total") / seconds, 1),
        "prompt_tokens_per_second": round(moved("prompt_tokens_total") / seconds, 1),
        "most_running": soak.most_running, "steps": moved("engine_steps_total"),
        "prefix_cache_hits": moved("prefix_cache_hits_total"), "replayed_tokens": moved("replayed_tokens_total"),
        "trimmed_rows": moved("trimmed_rows_total"), "preemptions": moved("num_preemptions_total"),
        "resident_mib_first_last_third": host, "gpu_mib_first_last_third": gpu,
        "median_gpu_mib": round(statistics.median(s[2] for s in soak.samples) / (1 << 20)) if gpu else None,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--senko", type=pathlib.Path, required=True)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--tokenizer", type=pathlib.Path, help="of a model without one; the bundled model's if absent")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--least-prompt", type=int, default=32, help="tokens")
    parser.add_argument("--most-prompt", type=int, default=8000)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--leave", type=float, default=0.25, help="share of the clients that leave early")
    parser.add_argument("--patience", type=float, default=180, help="seconds that an answer may take")
    parser.add_argument("--start-seconds", type=float, default=300)
    parser.add_argument("--growth-mib", type=float, default=64)
    parser.add_argument("--seed", default="soak")
    parser.add_argument("flags", nargs="*", help="of `senko serve`, behind --")
    args = parser.parse_args()
    server.START_SECONDS = args.start_seconds
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        model = args.model
        if not (model / "tokenizer.json").exists():
            spelling = args.tokenizer or args.senko.resolve().parent.parent / "models" / "bundled" / "tokenizer.json"
            model = folder / model.name
            model.mkdir()
            with_tokenizer(args.model, spelling, model)
        config = json.loads((model / "config.json").read_text())
        vocab = config.get("text_config", config)["vocab_size"]
        running = server.Server(args.senko, folder, *args.flags, model=model)
        try:
            problems, report = asyncio.run(run(args, running, vocab))
            begin = time.monotonic()
            running.signal()
            code = running.wait_exit(60)
            report["exit_code"], report["exit_seconds"] = code, round(time.monotonic() - begin, 2)
            if code != 0:
                problems.append(f"exit code {code}")
        finally:
            running.kill()
        log = running.errors().splitlines()
        report["start"] = next((line for line in log if "started in" in line), None)
        failed = [line for line in log if " failed: " in line]
        if failed:
            problems.append(f"{len(failed)} requests failed: {failed[0]}")
        report["problems"] = problems
        if problems:
            report["log"] = log[-20:]
        print(json.dumps(report, indent=1))
        return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
