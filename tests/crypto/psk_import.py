#!/usr/bin/env python3
"""The keys that are made of a pre-shared key, computed from RFC 5869, RFC 8446 §7.1 and RFC 9258 §5.1 alone.

    psk_import.py --print        the vectors
    psk_import.py --check FILE   compares them with a file of vectors, which psk_import_test.cc holds our code against
"""
import hashlib
import hmac
import sys

KEYS = [("default", bytes(range(32))), ("resnet-50_v1.5", b"\xff" * 32), ("j" * 64, hashlib.sha256(b"a key").digest())]
KDFS = [("sha256", 1, 32), ("sha384", 2, 48)]


def extract(salt, material):
    return hmac.new(salt, material, hashlib.sha256).digest()


def expand(secret, info, length):
    out, block, count = b"", b"", 1
    while len(out) < length:
        block = hmac.new(secret, block + info + bytes([count]), hashlib.sha256).digest()
        out, count = out + block, count + 1
    return out[:length]


def expand_label(secret, label, context, length):
    info = length.to_bytes(2, "big") + bytes([len(label)]) + label + bytes([len(context)]) + context
    return expand(secret, info, length)


def vectors():
    for job, key in KEYS:
        epskx = extract(bytes(32), key)
        for name, kdf, length in KDFS:
            # struct { opaque external_identity<1..2^16-1>; opaque context<0..2^16-1>; uint16 target_protocol, target_kdf; }
            identity = b"".join(len(part).to_bytes(2, "big") + part for part in (job.encode(), b"longhaul v1 tls"))
            identity += (0x0304).to_bytes(2, "big") + kdf.to_bytes(2, "big")
            ipskx = expand_label(epskx, b"tls13 derived psk", hashlib.sha256(identity).digest(), length)
            yield f"{name} {job} {key.hex()} {identity.hex()} {ipskx.hex()}"
        yield f"root {job} {key.hex()} - {expand_label(epskx, b'longhaul root', b'', 32).hex()}"


def main():
    lines = list(vectors())
    if sys.argv[1:] == ["--print"]:
        print("\n".join(lines))
        return 0
    with open(sys.argv[2], encoding="ascii") as file:
        found = file.read().split("\n")[:-1]
    if found != lines:
        print("psk_import.txt is not what RFC 9258 gives: psk_import.py --print", file=sys.stderr)
        return 1
    print(f"{len(lines)} vectors agree")
    return 0


if __name__ == "__main__":
    sys.exit(main())
