#!/usr/bin/env python3
"""Draws figures from what `senko bench ... --json` wrote (needs matplotlib, from PyPI).

    plot_bench.py --out FOLDER REPORT.json...

A report is one object, a list of them, or what record_gpu.py keeps. Of each kind that is there, the first report's figure is written as SVG and
PNG: cold_ttft (the first token of a cold prompt with and without replay and graphs), cached_ttft (behind a cached
prefix, with the fitted line), decode (a step over the batch), mixed (a stream's gaps beside a prompt).
"""

import argparse
import json
import pathlib
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402

# Told apart also without colour: by line and mark.
STYLES = [("#1b5e9b", "o", "-"), ("#c8501e", "s", "--"), ("#3a7d44", "^", "-."), ("#7b4ea3", "D", ":")]


def thousands(tokens):
    return f"{tokens // 1024}K" if tokens >= 1024 and tokens % 1024 == 0 else str(tokens)


def figure(title, x_label, y_label):
    fig, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    axes.set_title(title, fontsize=11)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(True, which="major", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return fig, axes


def line(axes, index, x, y, label):
    colour, mark, dash = STYLES[index % len(STYLES)]
    # Later ones thinner and with larger, hollow marks, so that curves that coincide are both seen.
    axes.plot(x, y, color=colour, marker=mark, linestyle=dash, linewidth=2.4 - 0.4 * min(index, 3),
              markersize=5 + 1.5 * min(index, 3), markerfacecolor=colour if index == 0 else "none", label=label)


def log_ticks(axes, values, text=str):
    axes.set_xscale("log", base=2)
    axes.set_xticks(values, [text(v) for v in values])
    axes.minorticks_off()


def draw_cold(report):
    rows = report["cold"]
    fig, axes = figure("First token of a cold prompt", "tokens of the prompt", "ms")
    x = [r["prompt_tokens"] for r in rows]
    curves = [("full_seconds", "every row in every layer"), ("replay_seconds", "decoder replay"),
              ("graphs_seconds", "decoder replay, CUDA graphs")]
    for i, (key, label) in enumerate(curves):
        if all(key in r for r in rows):
            line(axes, i, x, [r[key] * 1e3 for r in rows], label)
    log_ticks(axes, x, thousands)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda v, _: f"{v:,.0f}" if v >= 1 else f"{v:g}"))
    axes.legend(frameon=False, handlelength=3)
    return fig


def draw_cached(report):
    cached = report["cached"]
    rows = cached["results"]
    fig, axes = figure(f"First token of {cached['new_tokens']} new tokens behind a cached prefix", "cached tokens", "ms")
    x = [r["cached_tokens"] for r in rows]
    line(axes, 0, x, [r["ttft_seconds"] * 1e3 for r in rows], "measured")
    if "fit" in cached:
        none, growth = cached["fit"]["seconds_at_none"] * 1e3, cached["fit"]["seconds_per_1024"] * 1e3
        axes.plot(x, [none + growth * v / 1024 for v in x], color="#777777", linewidth=1.2, linestyle="--",
                  label=f"{none:.1f} ms + {growth:.3f} ms per 1,024")
    # Marks of short lengths would lie on one another.
    shown = [v for v in x if v >= max(x) / 16]
    axes.set_xticks(shown, [thousands(v) for v in shown])
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, handlelength=3)
    return fig


def draw_decode(report):
    rows = report["results"]
    machine = report["machine"].get("gpu") or report["machine"]["cpu"]
    fig, axes = figure(f"A decode step on {machine}", "sequences", "ms of both passes")
    kinds = sorted({(r["context"], r["rows"]) for r in rows})
    several_rows = len({kind[1] for kind in kinds}) > 1
    for i, (context, verified) in enumerate(kinds):
        mine = sorted((r for r in rows if (r["context"], r["rows"]) == (context, verified)), key=lambda r: r["batch"])
        label = f"{thousands(context)} tokens of context" + (f", {verified} rows" if several_rows else "")
        line(axes, i, [r["batch"] for r in mine], [r["pass_seconds"] * 1e3 for r in mine], label)
    limit = report["machine"]["read_bytes_per_second"]
    mine = sorted((r for r in rows if (r["context"], r["rows"]) == kinds[0]), key=lambda r: r["batch"])
    axes.plot([r["batch"] for r in mine], [(r["weight_bytes"] + r["kv_bytes"]) / limit * 1e3 for r in mine],
              color="#777777", linewidth=1.2, linestyle="--",
              label=f"what must be read, at {limit / 1e9:,.0f} GB/s ({thousands(kinds[0][0])})")
    log_ticks(axes, sorted({r["batch"] for r in rows}))
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, handlelength=3)
    return fig


def draw_mixed(report):
    rows = report["results"]
    fig, axes = figure(f"A stream beside a prompt of {thousands(report['prompt_tokens'])} tokens", "rows of a step",
                       "ms between tokens")
    x = [r["budget"] for r in rows]
    for i, (key, label) in enumerate((("longest_gap_seconds", "longest"), ("gap_seconds", "median"),
                                      ("quiet_gap_seconds", "alone"))):
        line(axes, i, x, [r[key] * 1e3 for r in rows], label)
    log_ticks(axes, x)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, handlelength=3)
    return fig


def figures(reports):
    """Name and figure of every kind that the reports have; reports of nothing that is drawn are left out."""
    drawn = {}
    for report in reports:
        kinds = []
        if report.get("benchmark") == "ttft":
            kinds = [(name, draw) for name, key, draw in
                     (("cold_ttft", "cold", draw_cold), ("cached_ttft", "cached", draw_cached)) if key in report]
        elif report.get("benchmark") == "decode":
            kinds = [("decode", draw_decode)]
        elif report.get("benchmark") == "mixed":
            kinds = [("mixed", draw_mixed)]
        for name, draw in kinds:
            if name not in drawn:
                drawn[name] = draw(report)
    return drawn


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("reports", nargs="+", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    reports = []
    for path in options.reports:
        content = json.loads(path.read_text())
        if isinstance(content, dict) and "runs" in content:
            content = [run["result"] for run in content["runs"].values()]
        reports += content if isinstance(content, list) else [content]
    drawn = figures(reports)
    if not drawn:
        sys.exit("plot_bench.py: no report of bench ttft, decode or mixed among these")
    options.out.mkdir(parents=True, exist_ok=True)
    # The same figures give the same files.
    matplotlib.rcParams["svg.hashsalt"] = "senko"
    for name, fig in drawn.items():
        fig.savefig(options.out / f"{name}.svg", metadata={"Date": None})
        fig.savefig(options.out / f"{name}.png", dpi=150)
        print(options.out / f"{name}.svg")


if __name__ == "__main__":
    main()
