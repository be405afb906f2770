#!/usr/bin/env python3
"""Writes the committed seeds of corpus/: golden vectors, and a few control streams packed by hand."""
import pathlib
import struct

HERE = pathlib.Path(__file__).resolve().parent
BIG = {"ack_full", "window_open_largest", "window_close_segment"}  # long inputs only slow the search down


def write(corpus, name, data):
    folder = HERE / "corpus" / corpus
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


def varint(value):  # protobuf's
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def number(field, value):
    return varint(field << 3) + varint(value)


def blob(field, data):
    return varint(field << 3 | 2) + varint(len(data)) + data


def f32(field, value):
    return varint(field << 3 | 5) + struct.pack("<f", value)


def f64(field, value):
    return varint(field << 3 | 1) + struct.pack("<d", value)


def framed(kind, body):
    message = blob(kind, body)
    prefix = bytes([len(message)]) if len(message) < 64 else struct.pack(">H", len(message) | 0x4000)
    return prefix + message


JOIN = framed(1, blob(1, b"job") + number(2, 1) + number(3, 4) + number(4, 7) + blob(5, b"B") + f32(6, 0.5))
WELCOME = framed(2, number(1, 1) + number(2, 4) + blob(3, b"residual") + f64(4, 0.2) + f64(5, 0.3) + f64(6, 0.9) +
                 number(7, 20) + number(8, 4) + number(9, 10000) + number(11, 1))
START = framed(4, number(1, 1408) + number(2, 4))
DECLARE = framed(5, number(1, 3) + blob(2, b"w1") + number(3, 1) + number(4, 100352) + blob(5, b"sgd:lr=0.1,momentum=0.9") +
                 number(6, 1))
DECLARED = framed(6, number(1, 3) + number(4, 1) + number(5, 2) + number(6, 1))
PULL = framed(7, number(1, 9) + number(2, 1) + number(3, 5))
REPORT = framed(9, number(1, 1) + number(2, 17) + number(3, 2) + number(4, 4) + number(5, 3) + number(6, 2) + number(7, 9) +
                f64(8, 0.02))
LEAVE = framed(10, number(1, 11) + blob(2, b"rank 2 is gone"))
BARRIER = framed(13, number(1, 4) + blob(2, b"epoch"))


def main():
    for line in (HERE.parent / "golden" / "vectors.txt").read_text().splitlines():
        name, _, data = line.partition(" ")
        if name.startswith("#"):
            continue
        kind, variant = name.split("/")
        if variant not in BIG:
            write("frames" if kind == "frame" else "packet_header", kind[0] + "_" + variant, bytes.fromhex(data))
    # First byte: pieces of 1 + that many bytes.
    write("control", "worker", b"\x07" + JOIN + DECLARE + PULL + BARRIER)
    write("control", "server", b"\xff" + WELCOME + START + DECLARED + REPORT + LEAVE)
    write("control", "bytewise", b"\x00" + JOIN + LEAVE)


if __name__ == "__main__":
    main()
