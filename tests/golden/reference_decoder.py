#!/usr/bin/env python3
"""A second opinion on the wire: decodes headers, frames, chunks and datagrams.

Written from docs/reference/wire_format.md alone, sharing nothing with proto/ and codec/. Plain Python 3, no packages, and slow on purpose.

    reference_decoder.py --check            every vector must decode to its line of vectors.jsonl, every reject must fail
    reference_decoder.py KIND HEX           KIND: long_header short_header data_header frame chunk datagram
"""
import json
import pathlib
import struct
import sys

MAX_NUMBER = 2**48 - 1
MAX_STREAM = 2**62 - 1
MAX_CHUNKS = 2**20
MAX_BLOCKS = 2**16
MAX_RANGES = 64
MAX_HANDSHAKE = 2**16
TAG = 16


class Refused(Exception):
    """The bytes are not what the document allows."""


def need(condition, why):
    if not condition:
        raise Refused(why)


class Cursor:
    def __init__(self, data):
        self.data = data
        self.at = 0

    def take(self, count):
        need(self.at + count <= len(self.data), "truncated")
        piece = self.data[self.at:self.at + count]
        self.at += count
        return piece

    def left(self):
        return len(self.data) - self.at

    def number(self, count):
        return int.from_bytes(self.take(count), "big")

    def varint(self, largest=MAX_STREAM):
        first = self.number(1)
        width = (1, 2, 4, 8)[first >> 6]
        value = (first & 0x3F) << 8 * (width - 1) | int.from_bytes(self.take(width - 1), "big")
        shortest = 1 if value < 2**6 else 2 if value < 2**14 else 4 if value < 2**30 else 8
        need(width == shortest, "integer not in its shortest form")
        need(value <= largest, "integer too large for its field")
        return value

    def boolean(self):
        value = self.number(1)
        need(value <= 1, "neither true nor false")
        return value == 1

    def blob(self, largest=None):
        length = self.varint()
        need(largest is None or length <= largest, "byte string too long")
        return self.take(length)


def long_header(c):
    flags, reserved = c.number(1), c.number(1)
    out = {"type": flags & 3, "version": c.number(2), "destination": c.number(8), "source": c.number(8),
           "packet_number": c.number(6)}
    need(flags & 0x80, "short form")
    need(flags & 0x7C == 0 and reserved == 0, "reserved bit")
    return out


def cookie(c):
    length = c.number(1)
    need(length <= 64, "cookie too long")
    return c.take(length).hex()


def short_header(c):
    flags = c.number(1)
    out = {"has_data": bool(flags & 0x40), "key_phase": bool(flags & 1), "path": c.number(1),
           "destination": c.number(8), "packet_number": c.number(6)}
    need(flags & 0x80 == 0, "long form")
    need(flags & 0x3E == 0, "reserved bit")
    return out


def data_header(c):
    window, index, flags = c.number(4), c.number(4), c.number(1)
    out = {"window_id": window, "index": index, "low": bool(flags & 1), "repair": bool(flags & 2),
           "last_of_window": bool(flags & 4), "retransmission": bool(flags & 8), "part": bool(flags & 16),
           "generation": c.number(1),
           "frames_length": c.number(2), "timestamp_us": c.number(4)}
    need(flags & 0xE0 == 0, "reserved bit")
    need(not (out["repair"] and out["low"]), "repair symbol of the low class")
    return out


def padding(c):
    length = 1
    while c.left() and c.data[c.at] == 0:
        c.at += 1
        length += 1
    return {"length": length}


def ack(c):
    largest, delay, more = c.varint(MAX_NUMBER), c.varint(), c.varint(MAX_RANGES - 1)
    ranges = []
    for i in range(more + 1):
        if i > 0:
            largest = ranges[-1][0] - c.varint() - 2
        smallest = largest - c.varint()
        need(smallest >= 0, "range below zero")
        ranges.append([smallest, largest])
    return {"ranges": ranges, "ack_delay_us": delay, "ecn_ect0": c.varint(), "ecn_ce": c.varint(), "host_drops": c.varint()}


def control(c):
    offset, data = c.varint(), c.blob()
    need(offset + len(data) <= MAX_STREAM, "beyond the end of the stream")
    return {"offset": offset, "data": data.hex()}


def window_open(c):
    out = {"window_id": c.varint(2**32 - 1), "generation": c.number(1), "high_count": c.varint(2**32 - 1),
           "low_count": c.varint(2**32 - 1), "symbol_bytes": c.varint(2**16 - 1), "fec_k": c.number(1),
           "fec_depth": c.number(1), "metadata": c.blob(512).hex()}
    need(out["high_count"] + out["low_count"] <= MAX_CHUNKS, "too many chunks")
    need(out["fec_depth"] >= 1, "interleaving depth zero")
    k = out["fec_k"]
    need(k == 0 or -(-out["high_count"] // k) <= MAX_BLOCKS, "too many blocks")
    return out


def window_status(c):
    out = {"window_id": c.varint(2**32 - 1), "generation": c.number(1), "finished": c.boolean(),
           "high_sent": c.varint(2**32 - 1), "low_sent": c.varint(2**32 - 1)}
    need(out["high_sent"] + out["low_sent"] <= MAX_CHUNKS, "too many chunks")
    return out


def window_close(c):
    out = {"window_id": c.varint(2**32 - 1), "generation": c.number(1), "reason": c.number(1),
           "high_complete": c.boolean(), "bits": c.varint(MAX_CHUNKS), "first": c.varint(2**32 - 1)}
    bitmap = c.blob(1024)
    need(out["reason"] <= 5, "unknown reason")
    need(out["first"] % 8 == 0, "segment starts inside a byte")
    need(out["first"] // 8 + len(bitmap) <= (out["bits"] + 7) // 8, "bitmap longer than its bits")
    for i in range(8 * len(bitmap)):
        if bitmap[i // 8] >> i % 8 & 1:
            need(out["first"] + i < out["bits"], "bit beyond the last")
    out["bitmap"] = bitmap.hex()
    return out


def window_nack(c):
    out = {"window_id": c.varint(2**32 - 1), "generation": c.number(1), "first": c.varint(2**32 - 1)}
    bitmap = c.blob(1024)
    need(out["first"] % 8 == 0, "bitmap starts inside a byte")
    need(out["first"] + 8 * len(bitmap) <= MAX_CHUNKS, "too many chunks")
    need(bitmap and bitmap[-1], "asks for nothing")
    out["bitmap"] = bitmap.hex()
    return out


def grant(c):
    return {"receive_window_bytes": c.varint(), "rate_bytes_per_second": c.varint()}


def close(c):
    code, reason = c.number(1), c.blob(256)
    need(code <= 17, "unknown status code")
    try:
        return {"code": code, "reason": reason.decode("utf-8")}
    except UnicodeDecodeError as error:
        raise Refused("reason is not UTF-8") from error


def transport_parameters(c):
    out = {"max_datagram_bytes": c.varint(2**32 - 1), "idle_timeout_ms": c.varint(),
           "receive_window_bytes": c.varint(), "max_open_windows": c.varint(2**32 - 1),
           "max_window_bytes": c.varint()}
    need(1200 <= out["max_datagram_bytes"] <= 65507, "max_datagram_bytes out of range")
    return out


def path_data(c):
    return {"data": c.number(8)}


def crypto(c):
    out = {"offset": c.varint(MAX_HANDSHAKE), "received": c.varint(MAX_HANDSHAKE)}
    data = c.blob()
    need(out["offset"] + len(data) <= MAX_HANDSHAKE, "handshake too long")
    return {**out, "data": data.hex()}


def key_update(c):
    out = {"phase": c.varint(), "answer": c.boolean(), "share": c.take(32).hex()}
    need(out["phase"] > 0, "phase 0 needs no update")
    return out


def new_cid(c):
    return {"reset_token": c.take(16).hex()}


FRAMES = {
    0x00: ("PADDING", padding), 0x01: ("PING", lambda c: {}), 0x02: ("ACK", ack), 0x06: ("CONTROL", control),
    0x10: ("WINDOW_OPEN", window_open), 0x11: ("WINDOW_STATUS", window_status),
    0x12: ("WINDOW_CLOSE", window_close), 0x13: ("WINDOW_NACK", window_nack), 0x14: ("GRANT", grant),
    0x15: ("CRYPTO", crypto), 0x16: ("PATH_CHALLENGE", path_data),
    0x17: ("PATH_RESPONSE", path_data), 0x18: ("NEW_CID", new_cid), 0x1A: ("KEY_UPDATE", key_update), 0x1C: ("CLOSE", close),
    0x20: ("TRANSPORT_PARAMETERS", transport_parameters),
}


def frame(c):
    kind = c.number(1)
    need(kind in FRAMES, "unknown frame type %d" % kind)
    name, decode = FRAMES[kind]
    return {"frame": name, **decode(c)}


def crc32c(data, crc=0):
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def integrity_tag(number, path, header, body):
    head = crc32c(number.to_bytes(8, "big") + bytes([path]) + header)
    words = (crc32c(body, head), head, len(body))
    return b"".join(word.to_bytes(4, "big") for word in words) + b"LHIT"


def datagram(c):
    data = c.take(c.left())
    need(len(data) > TAG, "truncated")
    head = Cursor(data[:-TAG])
    if data[0] & 0x80:
        out = {"header": long_header(head)}
        if out["header"]["type"] in (0, 3):
            out["cookie"] = cookie(head)
    else:
        out = {"header": short_header(head)}
        if out["header"]["has_data"]:
            out["data"] = data_header(head)
    body = head.data[head.at:]
    header = out["header"]
    need(integrity_tag(header["packet_number"], header.get("path", 0), data[:head.at], body) == data[-TAG:],
         "integrity tag")
    frames = Cursor(body)
    if "data" in out:
        need(out["data"]["frames_length"] <= len(body), "frames are longer than their packet")
        frames = Cursor(body[:out["data"]["frames_length"]])
    out["frames"] = []
    while frames.left():
        out["frames"].append(frame(frames))
    if "data" in out:
        chunk = body[frames.at:]
        if out["data"]["part"]:
            part, chunk = Cursor(chunk[:4]), chunk[4:]
            offset, total = out["part_offset"], out["part_total"] = part.number(2), part.number(2)
            end = offset + len(chunk)
            need(0 < len(chunk) < total and end <= total, "part outside of its chunk, or all of it")
            need(offset % 8 == 0 and (end == total or len(chunk) % 8 == 0), "part not of units of 8 bytes")
        out["chunk"] = chunk.hex()
    return out


class Bits:
    """Numbers of some bits from a cursor's bytes, the least significant first."""

    def __init__(self, cursor):
        self.cursor, self.left, self.byte = cursor, 0, 0

    def number(self, count):
        value = 0
        for i in range(count):
            if self.left == 0:
                self.byte, self.left = self.cursor.number(1), 8
            value |= (self.byte & 1) << i
            self.byte, self.left = self.byte >> 1, self.left - 1
        return value

    def end(self):
        need(self.byte == 0, "bits after the last")


def chunk(c):
    out = {"index": c.number(4), "count": c.number(2), "nonzero": c.number(2)}
    kind = c.number(1)
    out.update({"element_type": kind >> 4, "encoding": kind & 15, "log_energy": c.number(1), "scale": c.number(2)})
    need(out["count"] >= 1, "no elements")
    need(out["nonzero"] <= out["count"], "more non-zero elements than elements")
    need(out["element_type"] <= 5, "unknown element type")
    need(out["encoding"] <= 2, "unknown encoding")
    need(out["scale"] == 0 if out["element_type"] < 3 else out["scale"] < 0x8000, "scale")
    small = out["scale"] & 15 if out["element_type"] == 5 else 0
    scale = struct.unpack(">f", struct.pack(">HH", out["scale"] - small, 0))[0]
    bits = Bits(c)
    read = (lambda: struct.unpack("<f", c.take(4))[0], lambda: struct.unpack("<f", bytes(2) + c.take(2))[0],
            lambda: struct.unpack("<e", c.take(2))[0], lambda: scale * struct.unpack("b", c.take(1))[0],
            lambda: scale * ((bits.number(4) + 8) % 16 - 8), lambda: scale * (small, 16, -small, -16)[bits.number(2)])
    present = [True] * out["count"]
    if out["encoding"] == 1:
        bitmap = c.take((out["count"] + 31) // 32 * 4)
        present = [bitmap[i // 8] >> i % 8 & 1 == 1 for i in range(len(bitmap) * 8)]
        need(sum(present) == sum(present[:out["count"]]) == out["nonzero"], "bitmap")
        present = present[:out["count"]]
    if out["encoding"] == 2:
        codes = [read[out["element_type"]]() for _ in range(out["nonzero"])]
        bits.end()
        rice, values, gaps = (out["count"] // max(out["nonzero"], 1)).bit_length() - 1, [], Bits(c)
        for code in codes:
            high = 0
            while gaps.number(1):
                high += 1
            values += [0.0] * (high << rice | gaps.number(rice)) + [code]
        gaps.end()
        need(len(values) <= out["count"], "gaps")
        values += [0.0] * (out["count"] - len(values))
    else:
        values = [read[out["element_type"]]() if here else 0.0 for here in present]
        bits.end()
    out["values"] = struct.pack(">%df" % len(values), *values).hex()
    return out


KINDS = {"long_header": long_header, "short_header": short_header, "data_header": data_header, "frame": frame,
         "datagram": datagram, "chunk": chunk}


def decode(kind, data):
    cursor = Cursor(data)
    out = KINDS[kind](cursor)
    need(cursor.left() == 0, "bytes left over")
    return out


def text(value):
    return json.dumps(value, ensure_ascii=False)


def lines(path):
    for line in path.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            name, _, rest = line.partition(" ")
            yield name, bytes.fromhex(rest)


def check(folder):
    failures = 0
    expected = (folder / "vectors.jsonl").read_text(encoding="utf-8").splitlines()
    vectors = list(lines(folder / "vectors.txt"))
    if len(vectors) != len(expected):
        failures += 1
        print("vectors.txt has %d vectors, vectors.jsonl %d lines" % (len(vectors), len(expected)))
    for (name, data), line in zip(vectors, expected):
        try:
            got = text({"name": name, **decode(name.split("/")[0], data)})
        except Refused as refused:
            got = "refused: %s" % refused
        if got != line:
            failures += 1
            print("%s\n  expected %s\n  got      %s" % (name, line, got))
    rejects = list(lines(folder / "rejects.txt"))
    for name, data in rejects:
        try:
            print("%s should be refused, but is %s" % (name, text(decode(name.split("/")[0], data))))
            failures += 1
        except Refused:
            pass
    print("%d vectors, %d rejects, %d failures" % (len(vectors), len(rejects), failures))
    return 0 if failures == 0 and vectors and rejects else 1


def main(arguments):
    if arguments == ["--check"]:
        return check(pathlib.Path(__file__).resolve().parent)
    if len(arguments) == 2 and arguments[0] in KINDS:
        try:
            print(text(decode(arguments[0], bytes.fromhex(arguments[1]))))
            return 0
        except Refused as refused:
            print("refused: %s" % refused, file=sys.stderr)
            return 1
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
