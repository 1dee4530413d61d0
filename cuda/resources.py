#!/usr/bin/env python3
"""Registers, spills and shared memory of every kernel: the record that changes are read against.

    cuda/resources.py --write ARCH...   compiles cuda/*.cu for each architecture (80 86 89 90 100 120)
                                        and writes cuda/resources.txt
    cuda/resources.py                   whether the record is of these sources (so does a test, in
                                        every build: no CUDA compiler is needed)

Exit status: 0 current, 1 not. Source of the figures: ptxas -v.
"""
import concurrent.futures
import hashlib
import os
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
RECORD = HERE / "resources.txt"


def sources_sha256():
    """As cmake/check_cuda_resources.cmake has it: over lines of name and digest, by name."""
    lines = [f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n"
             for path in sorted([*HERE.glob("*.cu"), *HERE.glob("*.cuh")])]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def kernel_name(mangled):
    """The kernel's own name and template arguments: _ZN4bolt4cuda..., not demangled further."""
    text = subprocess.run(["c++filt", mangled], capture_output=True, text=True).stdout.strip()
    text = text.replace("(anonymous namespace)::", "").replace("bolt::cuda::", "")
    text = text.replace("bolt::", "").removeprefix("void ")
    depth = 0
    for i, c in enumerate(text):  # up to the parameter list, which templates may hold brackets before
        depth += (c == "<") - (c == ">")
        if c == "(" and depth == 0:
            return text[:i]
    return text


def compile_file(path, arch):
    command = ["nvcc", "-std=c++20", f"-arch=sm_{arch}", "-fmad=false",
               "--expt-relaxed-constexpr", "-Xptxas", "-v", "-I", str(HERE.parent), "-I",
               str(HERE.parent / ".deps"), "-cubin", str(path), "-o", os.devnull]
    if path.name == "round_control.cu":  # it launches graphs, as cuda/CMakeLists.txt has it
        command.append("-rdc=true")
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"resources: {path.name} does not compile for sm_{arch}:\n{run.stderr}")
    rows = []
    entry = re.compile(r"Compiling entry function '(\S+)'")
    name, spills = None, 0
    for line in run.stderr.splitlines():
        if found := entry.search(line):
            name, spills = kernel_name(found[1]), 0
        elif found := re.search(r"(\d+) bytes spill stores", line):
            spills = int(found[1])
        elif (found := re.search(r"Used (\d+) registers", line)) and name:
            shared = re.search(r"(\d+) bytes smem", line)
            rows.append((path.name, f"sm_{arch}", name, int(found[1]), spills,
                         int(shared[1]) if shared else 0))
            name = None
    return rows


def write(archs):
    jobs = [(path, arch) for arch in archs for path in sorted(HERE.glob("*.cu"))]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        rows = sorted(row for rows in pool.map(lambda job: compile_file(*job), jobs) for row in rows)
    version = re.search(r"release (\S+),", subprocess.run(
        ["nvcc", "--version"], capture_output=True, text=True).stdout)[1]
    with open(RECORD, "w", encoding="utf-8") as out:
        out.write(f"# sources {sources_sha256()}\n# nvcc {version}\n"
                  "# file, architecture, kernel, registers, bytes spilled, bytes of static shared\n")
        for row in rows:
            out.write("\t".join(map(str, row)) + "\n")
    print(f"{RECORD}: {len(rows)} kernels")


def check():
    recorded = re.match(r"# sources (\w+)", RECORD.read_text(encoding="utf-8"))[1]
    if recorded != sources_sha256():
        sys.exit("cuda/resources.txt is of other sources: run `cuda/resources.py --write "
                 "80 86 89 90 100 120` and read what changed")


if len(sys.argv) > 2 and sys.argv[1] == "--write":
    write(sys.argv[2:])
elif len(sys.argv) == 1:
    check()
else:
    sys.exit(__doc__)
