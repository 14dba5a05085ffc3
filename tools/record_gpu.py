#!/usr/bin/env python3
"""Runs the benchmarks of one GPU that docs/benchmarks.md records and keeps what they printed (standard library alone).

    record_gpu.py --senko build/cuda/bin/senko --out docs/benchmarks.json [--only ttft,decode] [--commit HASH]

Each run is one `senko` command with --json, one after the other, on weights made of models/v41-flash-slim alone. The
file has the machine, and every run's command, commit, date and result; runs that are made again replace those of their
name, others stay. A run that fails or takes too long is named and ends the program with exit code 1; what was there of
that name stays. tools/plot_bench.py draws figures from the file.
"""

import argparse
import datetime
import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
SLIM = ["--device", "cuda", "--load-format", "dummy", "--model", "models/v41-flash-slim"]
# name: (arguments, the seconds it may take)
RUNS = {
    "profile-1": (["profile", "step", *SLIM, "--batch", "1", "--context", "8192"], 60),
    "profile-8": (["profile", "step", *SLIM, "--batch", "8", "--context", "8192"], 60),
    "profile-64": (["profile", "step", *SLIM, "--batch", "64", "--context", "8192"], 60),
    "profile-1-long": (["profile", "step", *SLIM, "--batch", "1", "--context", "1048448"], 60),
    "profile-prefill": (["profile", "step", *SLIM, "--batch", "1", "--rows", "8192", "--context", "8192"], 60),
    "ttft": (["bench", "ttft", *SLIM, "--prompt-tokens", "1024,4096,8192,32768,131072", "--repeats", "3"], 240),
    "cached": (["bench", "ttft", *SLIM, "--cached-tokens", "8192,32768,131072,262144", "--new-tokens", "512"], 60),
    "decode": (["bench", "decode", *SLIM, "--batch", "1,2,4,8,16,32,64", "--context", "8192"], 90),
    "mixed": (["bench", "mixed", *SLIM], 120),
    "ops": (["bench", "ops", "--device", "cuda"], 240),
}


def machine():
    query = "name,driver_version,memory.total,power.limit"
    out = subprocess.run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader", "--id=0"],
                         capture_output=True, text=True, check=True).stdout
    cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "")
    return dict(zip(query.split(","), (part.strip() for part in out.split(","))), cpu=cpu)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--senko", required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--only", default=",".join(RUNS), help="names of runs, with commas: " + ", ".join(RUNS))
    parser.add_argument("--commit", default="", help="of the program; otherwise git is asked")
    options = parser.parse_args()
    names = options.only.split(",")
    if unknown := [name for name in names if name not in RUNS]:
        parser.error(f"--only: there is no {unknown[0]}; there are {', '.join(RUNS)}")
    commit = options.commit or subprocess.run(["git", "-C", HERE, "rev-parse", "--short", "HEAD"], capture_output=True,
                                              text=True, check=True).stdout.strip()
    kept = json.loads(options.out.read_text()) if options.out.exists() else {"machine": {}, "runs": {}}
    kept["machine"] = machine()
    failed = []
    for name in names:
        arguments, limit = RUNS[name]
        try:
            done = subprocess.run([options.senko, *arguments, "--json"], cwd=HERE.parent, capture_output=True, text=True,
                                  timeout=limit)
            if done.returncode:
                raise RuntimeError(f"exit {done.returncode}: {done.stderr.strip()[-500:]}")
            result = json.loads(done.stdout)
        except (RuntimeError, ValueError, subprocess.TimeoutExpired) as error:
            failed.append(name)
            print(f"{name}: {error}", file=sys.stderr)
            continue
        kept["runs"][name] = {"command": " ".join(["senko", *arguments, "--json"]), "commit": commit,
                              "date": datetime.date.today().isoformat(), "result": result}
        options.out.write_text(json.dumps(kept, indent=1) + "\n")  # what there is outlives an interruption
        print(f"{name}: done", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
