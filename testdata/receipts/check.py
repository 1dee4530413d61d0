#!/usr/bin/env python3
"""An independent offline checker of bolt receipts of every kind, for the tests.

Shares no code with receipts/: it reads JSON with Python's own parser, keeps its own list of fields,
and writes canonical JSON its own way. Prints one line a file: its status (0 intact, 3 not) and path.
Usage: check.py FILE...        needs nothing but Python 3.8
"""
import hashlib
import hmac
import json
import re
import sys

MAX_INT = 2**53 - 1
HEX = re.compile(r"[0-9a-f]*\Z")
KEY = re.compile(r"[a-z_][a-z0-9_]*\Z")


class Bad(Exception):
    pass


def need(condition, why):
    if not condition:
        raise Bad(why)


# ---- canonical JSON: read, write again, compare bytes ------------------------------------------

def no_float(text):
    raise Bad("a number that is no integer: " + text)


def pairs(items):
    keys = [key for key, _ in items]
    need(len(set(keys)) == len(keys), "duplicate key")
    return dict(items)


def integer(text):
    need(text != "-0", "minus zero")
    return int(text)


def quote(text):
    short = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
    out = []
    for char in text:
        if char in short:
            out.append(short[char])
        elif ord(char) < 0x20:
            out.append("\\u%04x" % ord(char))
        else:
            out.append(char)
    return '"' + "".join(out) + '"'


def write(value, depth=1):
    need(depth <= 16, "too deep")
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, int):
        need(-MAX_INT <= value <= MAX_INT, "integer out of range")
        return str(value)
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, list):
        return "[" + ",".join(write(item, depth + 1) for item in value) + "]"
    if isinstance(value, dict):
        for key in value:
            need(KEY.match(key), "key")
        return "{" + ",".join(quote(k) + ":" + write(value[k], depth + 1) for k in sorted(value)) + "}"
    raise Bad("null has no place")


def canonical(line, limit=1 << 20):
    need(len(line) <= limit, "too long")
    try:
        text = line.decode("utf-8", "strict")
        value = json.loads(text, parse_float=no_float, parse_constant=no_float, parse_int=integer,
                           object_pairs_hook=pairs)
        same = write(value).encode("utf-8") == line
    except (UnicodeError, ValueError, RecursionError) as error:
        raise Bad(str(error))
    need(same, "not canonical")
    return value


# ---- digests ------------------------------------------------------------------------------------

class Plain:
    """Digests that anyone can check."""

    def raw(self, message):
        return hashlib.sha256(message)

    def d(self, tag, *parts):
        message = b"bolt/1/" + tag.encode() + b"\0"
        for part in parts:
            message += len(part).to_bytes(8, "little") + part
        return self.raw(message)


class Keyed(Plain):
    """The same bytes through HMAC-SHA-256, under a campaign's key or a receipt's salt."""

    def __init__(self, key):
        self.key = key

    def raw(self, message):
        return hmac.new(self.key, message, hashlib.sha256)


def ids_bytes(ids):
    return b"".join(i.to_bytes(4, "little") for i in ids)


# ---- fields: name -> type; ? optional, ! needed -------------------------------------------------

def is_inside(path):
    return (path and "\\" not in path and all(ord(c) >= 32 and ord(c) != 127 for c in path)
            and all(step not in ("", ".", "..") for step in path.split("/")))


TYPES = {
    "int": lambda v: type(v) is int and v >= 0,
    "bool": lambda v: type(v) is bool,
    "str": lambda v: type(v) is str and v != "",
    "sha": lambda v: type(v) is str and len(v) == 64 and HEX.match(v),
    "id": lambda v: type(v) is str and len(v) == 32 and HEX.match(v),
    "f32": lambda v: type(v) is str and len(v) == 8 and HEX.match(v),
    "u64": lambda v: type(v) is str and len(v) == 16 and HEX.match(v),
    "hex": lambda v: type(v) is str and v and len(v) % 2 == 0 and HEX.match(v),
    "path": lambda v: type(v) is str and is_inside(v),
    "utc": lambda v: type(v) is str and re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\Z", v, re.A),
}

MODULE = {"name": "str!", "sha256": "sha?", "build_id": "hex?"}
FILE = {"path": "path!", "role": "manifest|graph|config|tokenizer|draft_vocab|payload|drafter!",
        "bytes": "int!", "sha256": "sha!", "how": "stream|verity|cached|carried!", "links": "int!"}
COMMON = {
    "_type": "bolt.receipt/1!", "kind": "run|session|conversion|bench|plan|audit!", "run_id": "id!", "challenge": "hex?",
    "build!": {"exe": "sha!", "modules?": [MODULE], "commit": "hex?", "tree": "hex?", "diff": "sha?",
               "published": "hex?", "toolchain": "str?", "flags": "str?",
               "cubins?": [{"arch": "str!", "sha256": "sha!"}], "jit": "bool?", "rebuilds": "int?"},
    "device?": {"kind": "cpu|cuda!", "arch": "str!", "sms": "int?", "ranks": "int!", "threads": "int!",
                "name": "str?", "driver": "str?", "runtime": "str?", "uuid_tag": "hex?"},
    "env?": [{"name": "str!", "value": "str?", "sha256": "sha?"}],
    "admission?": {"exclusive": "bool!", "others": "int!", "lock": "bool!"},
    "time?": {"utc": "utc!", "sealed_us": "int?", "load_ns": "int?", "prefill_ns": "int?",
              "first_token_ns": "int?", "decode_ns": "int?", "total_ns": "int?"},
    "parents?": [{"role": "conversion|session|bench|control|plan|run!", "rid": "sha!"}],
    "limits_stated?": ["str"], "not_run?": ["str"],
}
REDACTION = {"mode": "plain|keyed|salted!", "key_id": "sha?", "dropped": "bool?"}
RUN = dict(COMMON, **{
    "package!": {"files?": [FILE], "sha256": "sha!", "vocab": "sha!", "source": "str?"},
    "arith!": {"id": "str!", "sha256": "sha!", "kv": "i16|f32!", "scope": "any|arch|sm_count!",
               "width_invariant": "bool!"},
    "redaction!": REDACTION,
    "task!": {"prompt_ids": "sha!", "prompt_n": "int!", "text": "sha?", "template": "sha?",
              "sampling!": {"kind": "greedy|sample!", "temperature": "f32?", "top_k": "int?",
                            "top_p": "f32?", "min_p": "f32?", "rng": "str?", "seed": "u64?"},
              "stop_ids?": ["int"], "stop_texts?": ["sha"], "ignore_eos": "bool!", "sha256": "sha!"},
    "request?": {"input": "sha!", "line": "int!", "id": "sha?"},
    "limits!": {"max_new": "int?", "context": "int!"},
    "mode!": {"kind": "ordinary|speculative!", "depth": "int!", "adaptive": "bool!",
              "source": "off|mtp|copy|auto|scripted!", "geometry": "str!", "costs": "sha?"},
    "sched!": {"slots": "int!", "peers": "int!", "cache": "cold|resumed!", "cached_n": "int!"},
    "out!": {"n": "int!", "ids": "sha!", "chain!": {"stride": "int!", "marks?": ["sha"]},
             "text": "sha?", "key": "sha!", "state?": {"sha256": "sha!", "boundary": "str!"},
             "logits": "sha?", "nonfinite": "int!", "margin?": {"value": "f32!", "at": "int!"}},
    "stop!": {"kind": "eos|limit|context|stop_text|interrupted|cancelled|error!", "id": "int?",
              "at": "int?"},
    "count?": {"target": "int!", "segments": "int!", "rounds": "int!", "prompt_passes": "int!",
               "drafted": "int!", "accepted_at?": ["int"], "bonus": "int!", "cut": "int!",
               "head_levels": "int!", "copy!": {"rounds": "int!", "drafted": "int!", "accepted": "int!"},
               "state_copies": "int?", "bytes": "int?"},
    "series?": {"plan": "sha!", "cell": "int!", "pass": "int!", "index": "int!",
                "order": "forward|reversed!"},
})
CONVERSION = dict(COMMON, **{
    "package!": {"files!": [FILE], "sha256": "sha!", "vocab": "sha?", "source": "str?"},
    "arith?": {"id": "str!", "sha256": "sha!"},
    "conversion!": {"source_name": "str!", "source_files!": [{"path": "path!", "bytes": "int!",
                                                              "sha256": "sha!"}],
                    "quant": "none|q8|nvfp4!", "keep?": ["str"], "geometry": "str!",
                    "without_mtp": "bool!", "verified": "bool!", "tensors": "int!",
                    "values_compared": "int!", "values_requantised": "int!", "draft_vocab": "sha?"},
})


ARITH = {"id": "str!", "sha256": "sha!", "kv": "i16|f32!", "scope": "any|arch|sm_count!",
         "width_invariant": "bool!"}
MODE = {"kind": "ordinary|speculative!", "depth": "int!", "adaptive": "bool!",
        "source": "off|mtp|copy|auto|scripted!", "geometry": "str!", "costs": "sha?"}
SESSION = dict(COMMON, **{
    "package!": {"files!": [FILE], "sha256": "sha!", "vocab": "sha!", "source": "str?"},
    "arith!": ARITH, "redaction!": REDACTION, "mode?": MODE,
    "sched?": {"slots": "int!", "peers": "int!", "cache": "cold|resumed!", "cached_n": "int!"},
    "session!": {"phase": "open|closed!", "lines": "int?", "answered": "int?", "failed": "int?",
                 "failed_lines?": ["int"], "root": "sha?"},
})
BENCH = dict(COMMON, **{
    "mode?": MODE,
    "bench!": {"passes": "int!", "null": "bool!",
               "rows!": [{"name": "str!", "runs": "int!", "tokens": "int!", "equal": "bool!",
                          "median_ns": "int!", "low_ns": "int!", "high_ns": "int!"}]},
})
PLAN = dict(COMMON, **{
    "redaction!": REDACTION,
    "plan!": {"builds!": [{"name": "str!", "exe": "sha!"}], "packages!": ["sha"], "modes!": ["str"],
              "prompts!": [{"name": "str!", "line": "sha?", "prompt_ids": "sha?"}],
              "passes!": ["forward|reversed"], "max_new": "int?"},
})
AUDIT = dict(COMMON, **{
    "audit!": {"plan": "sha!", "planned": "int!", "found": "int!", "missing": "int!", "extra": "int!",
               "broken": "int!", "differing": "int!", "order": "bool!", "root": "sha!"},
})
KINDS_OF_BODY = {"run": RUN, "conversion": CONVERSION, "session": SESSION, "bench": BENCH,
                 "plan": PLAN, "audit": AUDIT}


def check_type(value, spec, where):
    if isinstance(spec, dict):
        need(isinstance(value, dict) and value, where + " is no object")
        known = {}
        for key, sub in spec.items():
            if isinstance(sub, str):
                known[key] = (sub[-1] == "!", sub[:-1] if sub[-1] in "!?" else sub)
            else:
                known[key[:-1]] = (key[-1] == "!", sub)
        for key in value:
            need(key in known, where + "." + key + " is unknown")
            check_type(value[key], known[key][1], where + "." + key)
        for key, (needed, _) in known.items():
            need(not needed or key in value, where + "." + key + " is missing")
    elif isinstance(spec, list):
        need(isinstance(value, list) and value, where + " is no list")
        for i, item in enumerate(value):
            check_type(item, spec[0], "%s[%d]" % (where, i))
    elif spec in TYPES:
        need(TYPES[spec](value), where + " is no " + spec)
    else:
        need(value in spec.split("|"), where + " is none of " + spec)


# ---- what must hold within a body ---------------------------------------------------------------

TASK_INPUTS = ("kind", "package.vocab", "redaction.mode", "redaction.key_id", "task.prompt_ids",
               "task.prompt_n", "task.sampling.kind", "task.sampling.temperature",
               "task.sampling.top_k", "task.sampling.top_p", "task.sampling.min_p",
               "task.sampling.rng", "task.sampling.seed", "task.stop_ids", "task.stop_texts",
               "task.ignore_eos")


def at(body, path, default=None):
    for step in path.split("."):
        if not isinstance(body, dict) or step not in body:
            return default
        body = body[step]
    return body


def task_digest(body, binder):
    inputs = {}
    for path in TASK_INPUTS:
        value = at(body, path)
        if value is None:
            continue
        steps = path.split(".")
        where = inputs
        for step in steps[:-1]:
            where = where.setdefault(step, {})
        where[steps[-1]] = value
    return binder.d("task", write(inputs).encode())


def check_files(files, where):
    paths = [f["path"] for f in files]
    need(paths == sorted(paths, key=lambda p: p.encode()), where + " not sorted")
    folded = {re.sub("[A-Z]", lambda m: m.group().lower(), p) for p in paths}
    need(len(folded) == len(paths), where + " clash")


def check_body(body, binder):
    check_type(body, KINDS_OF_BODY[body["kind"]], "body")
    for entry in body.get("env", []):
        need(("value" in entry) != ("sha256" in entry), "env entry")
    files = at(body, "package.files")
    if files is not None:
        check_files(files, "package.files")
        parts = []
        for f in files:
            parts += [f["path"].encode(), f["role"].encode(), f["bytes"].to_bytes(8, "little"),
                      bytes.fromhex(f["sha256"])]
        need(Plain().d("pkg", *parts).hexdigest() == body["package"]["sha256"], "package.sha256")
    if body["kind"] != "run":
        need("time" in body, "time")
    if body["kind"] in ("session", "bench"):
        need("device" in body and "jit" in body["build"], "left out")
    if body["kind"] in ("plan", "audit"):
        need("device" not in body and "jit" not in body["build"], "has no place")
    if body["kind"] == "conversion":
        check_files(body["conversion"]["source_files"], "source_files")
    if "redaction" in body:
        need((body["redaction"]["mode"] == "plain") != ("key_id" in body["redaction"]), "key_id")
    if body["kind"] == "session":
        closed = body["session"]["phase"] == "closed"
        for name in ("lines", "answered", "failed", "root"):
            need(closed == (name in body["session"]), "session." + name)
    if body["kind"] != "run":
        return
    pack = any(p["role"] == "session" for p in body.get("parents", []))
    dropped = at(body, "redaction.dropped", False)
    need(files is not None or pack, "package.files")
    need(dropped or ("count" in body and "time" in body and "jit" in body["build"]), "left out")
    need(dropped or pack or "device" in body, "device")
    sampling = body["task"]["sampling"]
    need(len(sampling) == (1 if sampling["kind"] == "greedy" else 7), "sampling")

    out, stop = body["out"], body["stop"]
    n, kind = out["n"], stop["kind"]
    need((kind == "eos") == ("id" in stop), "stop.id")
    need(kind == "error" or "at" not in stop, "stop.at")
    cached = body["sched"]["cached_n"]
    need(cached <= body["task"]["prompt_n"], "cached_n")
    need(body["sched"]["cache"] == "resumed" or cached == 0, "cold")
    need(body["task"]["prompt_n"] + n <= at(body, "limits.context", 1 << 53), "past the context")
    need(at(body, "device.ranks", 1) >= 1 and at(body, "sched.slots", 1) >= 1, "none")
    need(body["mode"]["kind"] != "ordinary" or body["mode"]["depth"] == 0, "depth")
    if "margin" in out:
        need(1 <= out["margin"]["at"] <= n, "margin")
    if "count" in body:
        c = body["count"]
        accepted = c.get("accepted_at", [])
        need(all(a >= b for a, b in zip(accepted, accepted[1:])), "accepted_at grows")
        need(sum(accepted) <= c["drafted"], "accepted > drafted")
        need(n == 0 or n == 1 + sum(accepted) + c["bonus"] - c["cut"], "out.n does not add up")
        need((accepted[0] if accepted else 0) <= c["rounds"] and c["bonus"] <= c["rounds"], "rounds")
        need(c["target"] == c["rounds"] + c["segments"], "target")
        # Windows have at most 31 drafts; a fixed depth bounds every round.
        mode, copy = body["mode"], c["copy"]
        fixed = mode["kind"] == "speculative" and not mode["adaptive"] and mode["depth"] > 0
        depth = min(mode["depth"], 31) if fixed else 31
        need(len(accepted) <= depth and c["drafted"] <= c["rounds"] * depth, "too many drafts")
        need(copy["rounds"] <= c["rounds"] and copy["drafted"] <= c["drafted"], "copy")
        need(copy["accepted"] <= min(copy["drafted"], sum(accepted)), "copy accepted")
        need(copy["drafted"] == 0 or copy["rounds"] > 0, "copy without a round")
        need(n == 0 or c["prompt_passes"] > 0, "no pass over the prompt")
        if body["mode"]["kind"] == "ordinary":
            need(c["drafted"] == 0, "ordinary drafted")
            want = max(n - 1, 0)
            spare = kind in ("error", "interrupted", "cancelled") and n > 0
            need(c["target"] == want or (spare and c["target"] == want + 1), "ordinary target")
    limit = at(body, "limits.max_new")
    need(limit is None or n <= limit, "past the limit")
    need(kind != "limit" or n == limit, "limit")
    if kind == "eos":
        need(stop["id"] in body["task"].get("stop_ids", []) and n > 0, "eos")
        need(not body["task"]["ignore_eos"], "eos ignored")
    stride = out["chain"]["stride"]
    need(stride > 0 and len(out["chain"].get("marks", [])) == -(-n // stride), "marks")
    if binder:
        need(task_digest(body, binder).hexdigest() == body["task"]["sha256"], "task.sha256")
        key = binder.d("out", bytes.fromhex(body["task"]["sha256"]), n.to_bytes(8, "little"),
                bytes.fromhex(out["ids"]), write(stop).encode())
        need(key.hexdigest() == out["key"], "out.key")


# ---- attachments --------------------------------------------------------------------------------

KINDS = ("salt", "prompt_ids", "ids", "prompt_text", "text", "logits", "state")


def check_attachment(body, line, last, rid, binder):
    value = canonical(line, 64 << 20)
    need(isinstance(value, dict) and value.get("_type") == "bolt.attachment/1", "neither attachment")
    need(len(value) == 4 and ("data" in value) != ("data_hex" in value), "attachment's form")
    need(value.get("of") == rid and str(value.get("kind")) in KINDS, "of or kind")
    kind, rank = value["kind"], KINDS.index(value["kind"])
    need(rank > last, "order")
    need(body["kind"] == "run", "no run")
    data = value.get("data")
    if "data_hex" in value:
        need(kind in ("salt", "prompt_text", "text") and HEX.match(value["data_hex"]), "data_hex")
        data = bytes.fromhex(value["data_hex"])
        if kind == "salt":
            need(body["redaction"]["mode"] == "salted" and len(data) == 32, "salt")
            need(Plain().d("key", data).hexdigest() == body["redaction"]["key_id"], "salt's key_id")
            return rank
        try:
            data.decode("utf-8")
            raise Bad("UTF-8 as hex")
        except UnicodeError:
            pass
    elif kind in ("prompt_text", "text"):
        need(isinstance(data, str), "text")
        data = data.encode()
    else:
        need(kind != "salt" and isinstance(data, list), "list")
    if kind in ("prompt_ids", "ids"):
        need(all(type(i) is int and 0 <= i < 2**31 for i in data), "ids")
        need(len(data) == (body["task"]["prompt_n"] if kind == "prompt_ids" else body["out"]["n"]), "n")
    elif kind in ("logits", "state"):
        need(all(TYPES["sha"](x) for x in data), "digests")
        need(kind != "logits" or len(data) == body["out"]["n"], "n")
    if not binder:  # only holders of the key can say more
        return rank
    if kind in ("prompt_ids", "ids"):
        sealed = body["task"]["prompt_ids"] if kind == "prompt_ids" else body["out"]["ids"]
        need(binder.d("ids", ids_bytes(data)).hexdigest() == sealed, kind)
        if kind == "ids":
            h = binder.d("chain", bytes.fromhex(body["task"]["sha256"])).digest()
            marks = []
            for i, token in enumerate(data, 1):
                h = binder.raw(b"bolt/1/tok\0" + h + token.to_bytes(4, "little")).digest()
                if i % body["out"]["chain"]["stride"] == 0 or i == len(data):
                    marks.append(h.hex())
            need(marks == body["out"]["chain"].get("marks", []), "chain")
    elif kind in ("prompt_text", "text"):
        sealed = at(body, "task.text") if kind == "prompt_text" else at(body, "out.text")
        need(binder.d("text", data).hexdigest() == sealed, kind)
    else:
        sealed = at(body, "out.logits") if kind == "logits" else at(body, "out.state.sha256")
        need(binder.d(kind, b"".join(map(bytes.fromhex, data))).hexdigest() == sealed, kind)
    return rank


def binder_of(body, lines):
    """Whose digests these are: anyone's, the attached salt's, or of a key that is not here (None)."""
    mode = at(body, "redaction.mode")
    if mode == "salted" and lines:
        value = canonical(lines[0], 64 << 20)
        salt = value.get("data_hex") if isinstance(value, dict) and value.get("kind") == "salt" else None
        if isinstance(salt, str) and len(salt) == 64 and HEX.match(salt):
            return Keyed(bytes.fromhex(salt))
    return Plain() if mode in (None, "plain") else None


def check(data):
    lines = data.split(b"\n")
    need(lines.pop() == b"", "no line feed at the end")
    need(len(lines) >= 2, "not sealed")
    body = canonical(lines[0])
    rid = hashlib.sha256(lines[0]).hexdigest()
    seal = {"_type": "bolt.seal/1", "alg": "sha256", "bytes": len(lines[0]), "canon": "jcs-int/1",
            "rid": rid}
    need(lines[1] == write(seal).encode(), "seal")
    need(isinstance(body, dict) and str(body.get("kind")) in KINDS_OF_BODY, "no object of a kind")
    need(isinstance(body.get("redaction", {}), dict), "redaction")
    binder = binder_of(body, lines[2:])
    check_body(body, binder)
    last = -1
    for line in lines[2:]:
        if line.startswith(b'{"payload":'):
            last = len(KINDS)  # signatures come last; who made them is not checked here
        else:
            last = check_attachment(body, line, last, rid, binder)


def main():
    for path in sys.argv[1:]:
        with open(path, "rb") as file:
            data = file.read()
        try:
            check(data)
            print(0, path)
        except Bad as why:
            print(3, path, why)


if __name__ == "__main__":
    main()
