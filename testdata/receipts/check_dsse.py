#!/usr/bin/env python3
"""An independent check of an exported DSSE envelope, for the tests.

Usage: check_dsse.py ENVELOPE.dsse.json PUBLIC.pem BODY    exit 0: signed, about these bytes; 1: not
Needs Python's cryptography; exit 77 where it is not installed.
"""
import base64
import hashlib
import json
import sys

try:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
except ImportError:
    sys.exit(77)


def main():
    envelope = json.load(open(sys.argv[1], encoding="utf-8"))
    envelope = envelope.get("dsseEnvelope", envelope)
    key = load_pem_public_key(open(sys.argv[2], "rb").read())
    body = open(sys.argv[3], "rb").read()
    payload = base64.b64decode(envelope["payload"], validate=True)
    kind = envelope["payloadType"].encode()
    message = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
    try:
        key.verify(base64.b64decode(envelope["signatures"][0]["sig"], validate=True), message)
    except InvalidSignature:
        sys.exit(1)
    statement = json.loads(payload)
    about = [subject["digest"]["sha256"] for subject in statement["subject"]]
    same = (envelope["payloadType"] == "application/vnd.in-toto+json"
            and statement["_type"] == "https://in-toto.io/Statement/v1"
            and statement["predicateType"] == "urn:bolt:receipt:1"
            and about == [hashlib.sha256(body).hexdigest()]
            and statement["predicate"] == json.loads(body))
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
