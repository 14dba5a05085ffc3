"""`senko bench ops`: figures that hang together, a filter, and what is refused."""
from bench import report, run


def test_the_chosen_operators(senko):
    found = report(senko, "ops", "--filter", "mhc_mix")
    assert [op["name"] for op in found["ops"]] == [f"mhc_mix rows={rows}" for rows in (1, 8, 2048)]
    machine = found["machine"]
    for op in found["ops"]:
        assert op["seconds"] > 0 and op["bytes"] > 0 and op["flops"] > 0
        memory, compute = op["bytes"] / machine["read_bytes_per_second"], op["flops"] / machine["fma_flops_per_second"]
        assert op["bound"] == ("memory" if memory > compute else "compute")
        assert abs(op["fraction_of_limit"] * op["seconds"] / max(memory, compute) - 1) < 1e-6
        assert "baseline" not in op and "clock_hz" not in op, "a GPU's"


def test_the_table(senko):
    done = run(senko, "ops", "--filter", "mhc_mix rows=1")
    assert done.returncode == 0, done.stderr
    machine, head, row = done.stdout.splitlines()
    assert "GB/s" in machine and head.split()[0] == "operator" and row.startswith("mhc_mix rows=1 ")


def test_what_is_refused(senko):
    for flags, word in ((("--filter", "nothing of the kind"), "--filter"), (("--device", "gpu"), "--device")):
        done = run(senko, "ops", *flags)
        assert done.returncode != 0 and word in done.stderr
