#!/usr/bin/env python3
"""Soak: many short requests through a pipe, with random cancels, bad lines and pauses.

usage: soak.py BOLT [N] [ARGS...]     e.g. soak.py build/release/bolt 20000 --parallel 8

Checks that every line is answered once and that resident memory stays within 5% after the first
thousand replies; prints memory every 1000. Only Python's standard library is used.
"""
import json
import random
import subprocess
import sys
import tempfile
import threading
import time


def main():
    bolt, n = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 20000
    rng = random.Random(1)
    receipts = tempfile.mkdtemp(prefix="bolt-soak-")
    server = subprocess.Popen([bolt, "serve-stdin", "-q", "--receipts", receipts] + sys.argv[3:],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    expected = {}  # line -> "done" or "error"
    n_words = 0

    def write():
        nonlocal n_words
        line = 0

        def put(text, kind):
            nonlocal line
            line += 1
            if kind:
                expected[line] = kind
            server.stdin.write(text + b"\n")

        for i in range(n):
            kind = rng.random()
            if kind < 0.03:
                put(rng.choice([b"ls", b"{", b'{"prompt": 5}', b"\xc4\xe3", b'{"prompt": ""}']),
                    "error")
            elif kind < 0.05:
                put(json.dumps({"cancel": i - rng.randint(1, 12)}).encode(), None)
                n_words += 1
            a, b = rng.randint(0, 99), rng.randint(0, 99)
            request = {"id": i, "prompt": f"What is {a} + {b}?", "think": False, "max_tokens": 16}
            if rng.random() < 0.2:
                request.update(temperature=0.8, seed=rng.randint(0, 1 << 63))
            if rng.random() < 0.1:
                request.update(stream=True)
            put(json.dumps(request).encode(), "done")
            if rng.random() < 0.01:
                server.stdin.flush()
                time.sleep(rng.random() * 0.05)
        server.stdin.close()

    writer = threading.Thread(target=write)
    writer.start()
    answered, samples, start = {}, [], time.time()
    for text in server.stdout:
        record = json.loads(text)
        if record["event"] == "token":
            continue
        line = record["line"]
        assert line not in answered, f"line {line} was answered twice"
        answered[line] = record["event"]
        if len(answered) % 1000 == 0:
            with open(f"/proc/{server.pid}/status") as status:
                kib = next(int(s.split()[1]) for s in status if s.startswith("VmRSS"))
            samples.append(kib)
            print(f"{len(answered):6} answered, {kib / 1024:.1f} MiB, "
                  f"{len(answered) / (time.time() - start):.1f} lines/s", flush=True)
    writer.join()
    status = server.wait()
    assert answered == expected, "lines lost, or ended otherwise"
    assert status == 1, f"exit status {status}, expected 1: some lines are bad"
    growth = max(samples[1:]) / samples[0] - 1 if len(samples) > 1 else 0.0
    print(f"{len(answered)} lines answered once, {n_words} words; most memory after the first "
          f"thousand {100 * growth:+.1f}%")
    subprocess.run([bolt, "receipt", "verify", "--parents",
                    *__import__("glob").glob(receipts + "/*.runs.jsonl")], check=True)
    assert growth < 0.05, "memory grew"


main()
