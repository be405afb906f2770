#!/usr/bin/env python3
"""Reads a safetensors file with nothing but the format's description, and prints it: name, shape, SHA-256 of the values.

    read_safetensors.py FILE

Refuses whatever the format forbids: gaps, overlaps, other lengths than the shapes say.
"""
import hashlib
import json
import struct
import sys

data = open(sys.argv[1], "rb").read()
(length,) = struct.unpack("<Q", data[:8])
header = json.loads(data[8:8 + length])
values = data[8 + length:]
assert (8 + length) % 8 == 0, "values are aligned"
metadata = header.pop("__metadata__", {})
assert all(isinstance(value, str) for value in metadata.values())
end = 0
for name, tensor in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
    begin, after = tensor["data_offsets"]
    assert tensor["dtype"] == "F32" and begin == end, name
    count = 1
    for size in tensor["shape"]:
        count *= size
    assert after - begin == 4 * count, name
    print(name, tensor["shape"], hashlib.sha256(values[begin:after]).hexdigest())
    end = after
assert end == len(values), "all bytes belong to a tensor"
