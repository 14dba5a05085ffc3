#!/usr/bin/env python3
"""Times Senko against ftllm (fastllm, from PyPI) on one checkpoint, in turns, on the CPU.

    compare_ftllm.py --senko build/release/bin/senko --peer-python VENV/bin/python --model DIR
                     [--prompt-tokens 64 512] [--decode-tokens 32] [--rounds 5] [--threads 0] [--check] [--json]

DIR is a checkpoint in the released layout, such as `senko make-model --config models/slim/config.json` writes.
--peer-python is a Python with ftllm installed; its CPU path imports numpy, tokenizers and pillow and nothing else.
No tokenizer is needed: both get the same token ids and decode greedily to the same length with the same threads.

A round runs every case once with each engine, who goes first alternates, and the one not measured is stopped.
Prefill is the time to the first token, decode that of all later ones. ftllm loads once and stays warm; Senko starts
anew each time from the page cache, so that its page faults count. Loading counts for neither. Reported are medians,
and the median of the rounds' ratios (above 1: Senko is faster). ftllm's threads wait by spinning: on a busy machine
its figures mean nothing.

--decoder-replay full has both compute every row of the prompt in every layer; trim lets both skip the later layers of
rows before the last window (ftllm calls it fast prefill). --check compares the logits of ftllm's greedy run, step by
step, with Senko's of the same tokens.
"""

import argparse
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile

FIRST_ORDINARY_ID = 3  # after bos, eos and pad


# ------------------------------------------------------------------------------------------------ inside ftllm's Python

def read_safetensors(path, name):
    import numpy as np
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        entry = json.loads(file.read(size))[name]
        begin, end = entry["data_offsets"]
        file.seek(8 + size + begin)
        kinds = {"F32": np.float32, "I64": np.int64}
        return np.frombuffer(file.read(end - begin), kinds[entry["dtype"]]).reshape(entry["shape"])


def status_mib(field):
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    return 0.0


class Peer:
    def __init__(self, options):
        import ctypes
        import time
        from ftllm import llm
        self.ctypes, self.time, self.lib = ctypes, time, llm.fastllm_lib
        self.vocab = options["vocab"]
        llm.set_cpu_threads(options["threads"])  # workers; the thread that hands them work spins beside them
        llm.set_device_map("cpu")
        llm.set_device_map("cpu", True)
        start = time.monotonic()
        self.model = llm.model(options["model"], dtype=options["dtype"], moe_dtype=options["moe_dtype"],
                               kv_cache_dtype=options["kv_dtype"], tokenizer_type="fastllm")
        self.model.set_atype("float32")  # what ftllm's own command line chooses for the CPU
        self.model.set_max_batch(1)
        if options["chunk"]:
            self.model.set_chunked_prefill_size(options["chunk"])
        self.load_seconds = time.monotonic() - start

    def generate(self, ids, count, keep_logits=False):
        import numpy as np
        c = self.ctypes
        start = self.time.monotonic()
        handle = self.lib.launch_response_llm_model(
            self.model.model, len(ids), (c.c_int * len(ids))(*ids), c.c_int(count), c.c_int(0), c.c_bool(False),
            c.c_float(1), c.c_int(1), c.c_float(1), c.c_float(1), c.c_bool(keep_logits), c.c_int(0), None)
        buffer = (c.c_float * (4 * self.vocab))()
        tokens, logits, times = [], [], []
        while True:
            while not self.lib.can_fetch_response_llm_model(self.model.model, handle):
                self.time.sleep(0.0005)  # fetching spins, and would take a core from the engine
            if keep_logits:
                token = self.lib.fetch_response_logits_llm_model(self.model.model, handle, buffer)
            else:
                token = self.lib.fetch_response_llm_model(self.model.model, handle)
            if token < 0:
                break
            times.append(self.time.monotonic() - start)
            tokens.append(int(token))
            if keep_logits:
                logits.append(np.ctypeslib.as_array(buffer)[:self.vocab].astype(np.float64))
        if not tokens:
            raise RuntimeError("ftllm produced no token")
        return tokens, logits, times

    def time_case(self, ids, count):
        tokens, _, times = self.generate(ids, count)
        return {"tokens": tokens, "prefill": len(ids) / times[0],
                "decode": (len(tokens) - 1) / (times[-1] - times[0]) if len(tokens) > 1 else None}

    def check(self, ids, count, senko_command, folder):
        """Senko's logits of the prompt and ftllm's own continuation, against ftllm's, one row a step."""
        import numpy as np
        tokens, rows, _ = self.generate(ids, count, keep_logits=True)
        source, target = os.path.join(folder, "check.json"), os.path.join(folder, "check.safetensors")
        pathlib.Path(source).write_text(json.dumps({"prompts": [ids + tokens[:-1]]}))
        subprocess.run(senko_command + ["--tokens", source, "--out", target], check=True, stdout=subprocess.DEVNULL)
        positions = read_safetensors(target, "prompt_0.positions")
        ours = read_safetensors(target, "prompt_0.logits")[positions >= len(ids) - 1].astype(np.float64)
        steps = []
        for mine, theirs, token in zip(ours, rows, tokens):
            steps.append({"cosine": float(mine @ theirs / np.sqrt((mine @ mine) * (theirs @ theirs))),
                          "largest_difference_over_rms": float(np.abs(mine - theirs).max() / np.sqrt((mine**2).mean())),
                          "same_token": int(mine.argmax()) == token})
        return steps


def serve():
    """One JSON request a line on stdin, one answer a line on stdout; what the library prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    peer = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            kind = request.pop("do")
            if kind == "load":
                peer = Peer(request)
                answer = {"load_seconds": peer.load_seconds, "pid": os.getpid()}
            elif kind == "memory":
                answer = {"resident_mib": status_mib("VmRSS"), "peak_mib": status_mib("VmHWM")}
            else:
                answer = getattr(peer, kind)(**request)
        except (Exception, SystemExit) as error:  # ftllm reports some failures by leaving the program
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
    os._exit(0)  # its threads do not end by themselves


# -------------------------------------------------------------------------------------------------- in this interpreter

class PeerProcess:
    def __init__(self, arguments, environment, log):
        self.process = subprocess.Popen([arguments.peer_python, __file__, "--serve"], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=log, env=environment, text=True)
        self.log = log

    def ask(self, do, **request):
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.write(json.dumps({"do": do, **request}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"ftllm ended during {do}; it printed:\n" + pathlib.Path(self.log.name).read_text()[-1000:])
        answer = json.loads(line)
        if isinstance(answer, dict) and "error" in answer:
            sys.exit(f"ftllm failed during {do}: {answer['error']}")
        self.process.send_signal(signal.SIGSTOP)  # an idle engine must not take time from the other
        return answer

    def end(self):
        self.process.kill()
        self.process.wait()


def prepare_peer_folder(model, text, senko, folder):
    """Links the checkpoint and adds the files that ftllm insists on."""
    for path in model.iterdir():
        (folder / path.name).symlink_to(path.resolve())
    made = {"tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"},
            "tokenizer.json": {"version": "1.0", "added_tokens": [],
                               "model": {"type": "BPE", "vocab": {}, "merges": []}}}
    token_map = model / "engram_map.json"
    if text.get("engram_layer_ids") and token_map.exists():
        inspected = json.loads(subprocess.check_output([senko, "inspect", str(model), "--json"]))
        made["engram_meta.json"] = {
            "token_map": json.loads(token_map.read_text()), "pad_token_id": text["engram_pad_token_id"],
            "compressed_vocab_size": text["engram_compressed_vocab_size"],
            "engram_layer_ids": text["engram_layer_ids"], "multipliers": inspected["engram"]["multipliers"]}
    for name, value in made.items():
        if not (folder / name).exists():
            (folder / name).write_text(json.dumps(value))


def time_senko(arguments, ids, count):
    command = [arguments.senko, "generate", "--model", str(arguments.model), "--token-ids", ",".join(map(str, ids)),
               "--max-tokens", str(count), "--temperature", "0", "--ignore-eos", "--json", "--threads",
               str(arguments.threads), "--numerics", arguments.numerics, "--decoder-replay", arguments.decoder_replay]
    answer = json.loads(subprocess.check_output(command))
    return {"tokens": answer["token_ids"], "prefill": answer["prefill_tokens_per_second"],
            "decode": answer["decode_tokens_per_second"] if len(answer["token_ids"]) > 1 else None,
            "peak_mib": answer["peak_resident_bytes"] / 2**20}


def same_start(one, other):
    return next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))


def summarize(runs, phase):
    pairs = [(run["senko"][phase], run["ftllm"][phase]) for run in runs]
    if any(None in pair for pair in pairs):
        return None
    return {"senko": statistics.median(s for s, _ in pairs), "ftllm": statistics.median(f for _, f in pairs),
            "ratio": statistics.median(s / f for s, f in pairs), "ratios": [s / f for s, f in pairs]}


def arguments_of_the_command_line():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--senko", required=True, help="the senko program")
    parser.add_argument("--peer-python", required=True, help="a Python that has ftllm")
    parser.add_argument("--model", required=True, type=pathlib.Path, help="checkpoint folder")
    parser.add_argument("--prompt-tokens", type=int, nargs="+", default=[64, 512], help="one case per length")
    parser.add_argument("--decode-tokens", type=int, default=32, help="tokens generated in each case")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0, help="of each engine; 0: every CPU this process may use")
    parser.add_argument("--peer-threads", type=int, default=0, help="ftllm's, where fewer are faster; 0: as --threads")
    parser.add_argument("--decoder-replay", choices=["full", "trim"], default="full")
    parser.add_argument("--numerics", default="model", help="Senko's")
    parser.add_argument("--peer-dtype", default="bfloat16", help="what ftllm keeps dense FP8 weights as")
    parser.add_argument("--peer-moe-dtype", default="", help="the same for experts; empty: their stored FP4")
    parser.add_argument("--peer-kv-dtype", default="auto")
    parser.add_argument("--peer-chunk", type=int, default=0, help="ftllm's prefill chunk; 0: its default")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--check", action="store_true", help="also compare logits")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    arguments.model = arguments.model.resolve()
    arguments.threads = arguments.threads or len(os.sched_getaffinity(0))
    arguments.peer_threads = arguments.peer_threads or arguments.threads
    return arguments


def compare(arguments, folder):
    config = json.loads((arguments.model / "config.json").read_text())
    text = config.get("text_config", config)
    peer_folder = folder / "model"
    peer_folder.mkdir()
    prepare_peer_folder(arguments.model, text, arguments.senko, peer_folder)
    environment = dict(os.environ, FT_THREADS=str(arguments.peer_threads), OPENBLAS_NUM_THREADS="1",
                       CUDA_VISIBLE_DEVICES="", FASTLLM_SKIP_WARMUP="1", FASTLLM_DSV41_DISABLE_PREFIX_CACHE="1",
                       FASTLLM_DSV41_DECODER_SWA_BOUNDED_REPLAY=str(int(arguments.decoder_replay == "trim")))
    with open(folder / "ftllm.log", "w", encoding="utf-8") as log:
        peer = PeerProcess(arguments, environment, log)
        try:
            loaded = peer.ask("load", model=str(peer_folder), threads=arguments.peer_threads, vocab=text["vocab_size"],
                              dtype=arguments.peer_dtype, moe_dtype=arguments.peer_moe_dtype,
                              kv_dtype=arguments.peer_kv_dtype, chunk=arguments.peer_chunk)
            random_ids = random.Random(arguments.seed)
            last = min(text["vocab_size"], config.get("image_token_id") or text["vocab_size"])

            def prompt(length):
                return [random_ids.randrange(FIRST_ORDINARY_ID, last) for _ in range(length)]

            warm = prompt(8)
            time_senko(arguments, warm, 2)
            peer.ask("time_case", ids=warm, count=2)
            runs = {length: [] for length in arguments.prompt_tokens}
            for n in range(arguments.rounds):
                for length in arguments.prompt_tokens:
                    ids = prompt(length)
                    turns = {"senko": lambda: time_senko(arguments, ids, arguments.decode_tokens),
                             "ftllm": lambda: peer.ask("time_case", ids=ids, count=arguments.decode_tokens)}
                    order = sorted(turns, reverse=n % 2 == 0)
                    run = {name: turns[name]() for name in order}
                    runs[length].append(run)
                    print(f"round {n + 1}, prompt {length}: " + ", ".join(
                        f"{name} prefill {run[name]['prefill']:.2f}, decode {run[name]['decode'] or 0:.2f} tokens/s"
                        for name in sorted(run)), file=sys.stderr, flush=True)
            cases = []
            for length, rows in runs.items():
                cases.append({
                    "prompt_tokens": length, "decode_tokens": arguments.decode_tokens,
                    "prefill": summarize(rows, "prefill"), "decode": summarize(rows, "decode"),
                    "same_first_tokens": [same_start(r["senko"]["tokens"], r["ftllm"]["tokens"]) for r in rows]})
            memory = peer.ask("memory")
            if arguments.check:
                command = [arguments.senko, "logits", "--model", str(arguments.model), "--numerics", arguments.numerics,
                           "--threads", str(arguments.threads), "--decoder-replay", arguments.decoder_replay]
                for case in cases:
                    case["check"] = peer.ask("check", ids=prompt(case["prompt_tokens"]), count=arguments.decode_tokens,
                                             senko_command=command, folder=str(folder))
        finally:
            peer.end()
    return {"threads": arguments.threads, "peer_threads": arguments.peer_threads, "rounds": arguments.rounds,
            "decoder_replay": arguments.decoder_replay, "numerics": arguments.numerics,
            "peer_dtype": arguments.peer_dtype, "cases": cases,
            "ftllm_load_seconds": loaded["load_seconds"], "ftllm_resident_mib": memory["resident_mib"],
            "ftllm_peak_mib": memory["peak_mib"],
            "senko_peak_mib": max(r["senko"]["peak_mib"] for rows in runs.values() for r in rows)}


def print_text(result):
    print(f"{result['threads']} threads (ftllm {result['peer_threads']}), median of {result['rounds']} rounds, decoder "
          f"replay {result['decoder_replay']}, numerics {result['numerics']}, ftllm dtype {result['peer_dtype']}; "
          "tokens/s")
    print(f"{'prompt':>7} {'phase':>8} {'senko':>10} {'ftllm':>10} {'ratio':>7}  ratios")
    for case in result["cases"]:
        for phase in ("prefill", "decode"):
            row = case[phase]
            if row:
                print(f"{case['prompt_tokens']:>7} {phase:>8} {row['senko']:>10.2f} {row['ftllm']:>10.2f} "
                      f"{row['ratio']:>7.2f}  " + " ".join(f"{ratio:.2f}" for ratio in row["ratios"]))
    for case in result["cases"]:
        print(f"prompt {case['prompt_tokens']}: greedy tokens agree for the first",
              ", ".join(map(str, case["same_first_tokens"])), "of", case["decode_tokens"])
        if "check" in case:
            steps = case["check"]
            print(f"prompt {case['prompt_tokens']}: on the same tokens {sum(s['same_token'] for s in steps)} of "
                  f"{len(steps)} choices agree; cosine of logits {steps[0]['cosine']:.5f} at the first, "
                  f"{min(s['cosine'] for s in steps):.5f} at worst; largest difference "
                  f"{max(s['largest_difference_over_rms'] for s in steps):.3f} rms")
    print(f"memory: senko {result['senko_peak_mib']:.0f} MiB at most (mapped weights included); ftllm "
          f"{result['ftllm_resident_mib']:.0f} MiB, {result['ftllm_peak_mib']:.0f} at most; it loaded in "
          f"{result['ftllm_load_seconds']:.1f} s")


def main():
    if sys.argv[1:] == ["--serve"]:
        serve()
    arguments = arguments_of_the_command_line()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that ftllm is not left behind, stopped
    with tempfile.TemporaryDirectory(prefix="compare-ftllm-") as folder:
        result = compare(arguments, pathlib.Path(folder))
    if arguments.json:
        print(json.dumps(result, indent=1))
    else:
        print_text(result)


if __name__ == "__main__":
    main()
