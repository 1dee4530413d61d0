#!/usr/bin/env python3
"""Kills `bolt serve-stdin -o FILE` at random moments and resumes it, again and again.

usage: kill_resume.py BOLT [KILLS] [ARGS...]     e.g. kill_resume.py build/release/bolt 50

Rounds of kill -9 and --resume go on until so many kills have hit; each round's output must answer
every line exactly once, as an undisturbed run does, and its receipts must audit clean.
"""
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time


def make_batch(path, n):
    rng = random.Random(2)
    with open(path, "w") as batch:
        for i in range(n):
            if i % 17 == 5:
                batch.write("not json\n")
            request = {"id": f"r{i}", "prompt": f"What is {rng.randint(0, 99)} + {i}?",
                       "think": i % 3 == 0, "max_tokens": rng.choice([8, 24, 60]),
                       "logits_sha256": True, "stream": i % 5 == 0}
            if i % 4 == 0:
                request.update(temperature=0.9, seed=i)
            batch.write(json.dumps(request) + "\n")


def answers(path):
    out = {}
    for text in open(path, "rb"):
        record = json.loads(text)
        if record["event"] == "token":
            continue
        assert record["line"] not in out, f"line {record['line']} is answered twice"
        out[record["line"]] = (record["event"], record.get("ids"), record.get("text"),
                               record.get("logits_sha256"), (record.get("error") or {}).get("code"))
    return out


def main():
    bolt, n_kills = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 50
    work = tempfile.mkdtemp(prefix="bolt-kill-")
    batch = work + "/batch.jsonl"
    make_batch(batch, 60)

    def command(receipts, out, *more):
        return [bolt, "serve-stdin", "-q", "--receipts", receipts, "-o", out, *more, *sys.argv[3:]]

    start = time.time()
    undisturbed = work + "/whole.jsonl"
    with open(batch, "rb") as lines:
        assert subprocess.run(command(work + "/r0", undisturbed), stdin=lines).returncode == 1
    seconds, whole = time.time() - start, answers(undisturbed)
    rng, hits, n_round = random.Random(3), 0, 0
    while hits < n_kills:
        n_round += 1
        out, receipts = f"{work}/out{n_round}.jsonl", f"{work}/r{n_round}"
        status = None
        while status is None:
            with open(batch, "rb") as lines:
                child = subprocess.Popen(command(receipts, out, "--resume"), stdin=lines)
            try:
                # The last round's tail runs to its end.
                limit = rng.uniform(0.05, seconds * 0.6) if hits < n_kills else None
                status = child.wait(limit)
            except subprocess.TimeoutExpired:
                os.kill(child.pid, signal.SIGKILL)
                child.wait()
                hits += 1
        assert status == 1, f"exit status {status}"
        assert answers(out) == whole, f"{out} differs from {undisturbed}"
        audit = subprocess.run([bolt, "receipt", "audit", receipts, "--lines", batch],
                               capture_output=True, text=True)
        print(f"round {n_round}: {hits} kills so far; {audit.stdout.splitlines()[0]}", flush=True)
        assert audit.returncode == 0, audit.stdout + audit.stderr
    # The control: without one of its runs, the audit must not be clean.
    pack = next(f for f in os.listdir(work + "/r0") if f.endswith(".runs.jsonl"))
    text = open(f"{work}/r0/{pack}", "rb").read()
    second = text.index(b'{"_type":"bolt.receipt/1"', 10)
    open(f"{work}/r0/{pack}", "wb").write(text[second:])
    bad = subprocess.run([bolt, "receipt", "audit", work + "/r0", "--lines", batch],
                         capture_output=True)
    assert bad.returncode == 1, "a missing run was not found"
    print(f"{hits} kills, {n_round} rounds: every line answered once, as undisturbed")


main()
