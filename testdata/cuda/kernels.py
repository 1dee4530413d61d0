#!/usr/bin/env python3
"""Where the time of one pass goes, kernel by kernel, as NVIDIA's ncu sees it.

    testdata/cuda/kernels.py BOLT PACKAGE [--ncu PATH]                a token's
    testdata/cuda/kernels.py BOLT PACKAGE --prompt FILE [--ncu PATH]  a prompt chunk's, of several
    testdata/cuda/kernels.py --csv FILE         of what `ncu --csv` has printed before

Runs `bolt run --no-graphs --draft off` under ncu and prints, of its last pass that another follows,
each kernel's launches, their time and share. Every kernel is timed alone: in a pass they overlap, so their sum is
more than the pass takes. Python's own library alone.
"""
import argparse
import collections
import csv
import re
import subprocess
import sys

MICROSECONDS = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3}


def launches(text):
    """(kernel, grid, microseconds) of every launch, in order."""
    columns = None
    for row in csv.reader(line for line in text.splitlines() if line.startswith('"')):
        if row[0] == "ID":
            columns = {name: i for i, name in enumerate(row)}
            continue
        name = row[columns["Kernel Name"]].split("(")[0] or row[columns["Kernel Name"]]
        name = re.sub(r"^void |bolt::cuda::|<unnamed>::|unnamed>::|\(anonymous namespace\)::", "", name)
        time = float(row[columns["Metric Value"]].replace(",", ""))
        yield name, row[columns["Grid Size"]], time * MICROSECONDS[row[columns["Metric Unit"]]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bolt", nargs="?")
    parser.add_argument("package", nargs="?")
    parser.add_argument("--ncu", default="ncu")
    parser.add_argument("--prompt")
    parser.add_argument("--csv")
    args = parser.parse_args()
    if args.csv:
        with open(args.csv, encoding="utf-8") as file:
            text = file.read()
    elif args.package:
        command = [args.ncu, "--clock-control", "none", "--cache-control", "none", "--csv",
                   "--metrics", "gpu__time_duration.sum", args.bolt, "run", "-q", "-m", args.package,
                   "--device", "cuda", "--no-graphs", "--draft", "off", "--ignore-eos"]
        command += ["-c", "16384", "-n", "1", "-f", args.prompt] if args.prompt else [
            "-c", "2048", "-n", "4", "-p", "Count."]
        run = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        text = run.stdout
        if run.returncode != 0:
            sys.exit(f"{args.ncu}: status {run.returncode}: {run.stderr.strip()[-300:]}")
    else:
        parser.error("a program and a package, or --csv FILE")
    sequence = list(launches(text))
    # A pass begins with its embedding.
    starts = [i for i, (name, _, _) in enumerate(sequence) if name.startswith("embed")]
    if len(starts) < 2:
        sys.exit("no whole pass among the kernels: a prompt must take several chunks")
    kernels = collections.defaultdict(list)
    for name, grid, time in sequence[starts[-2]:starts[-1]]:
        kernels[name, grid].append(time)
    total = sum(map(sum, kernels.values()))
    print(f"{starts[-1] - starts[-2]} kernels, {total / 1000:.3f} ms one after the other")
    print("share      us  each  launches  kernel, grid")
    for (name, grid), times in sorted(kernels.items(), key=lambda item: -sum(item[1])):
        print(f"{sum(times) / total:5.1%} {sum(times):7.1f} {sum(times) / len(times):5.1f} "
              f"{len(times):9}  {name}, {grid}")
    return 0


sys.exit(main())
