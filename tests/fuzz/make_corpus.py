#!/usr/bin/env python3
"""Writes the committed seeds of corpus/: golden vectors, and a few control streams packed by hand."""
import hashlib
import json
import pathlib
import struct

HERE = pathlib.Path(__file__).resolve().parent
BIG = {"ack_full", "window_open_largest", "window_close_segment", "window_nack_last"}  # long inputs only slow the search down


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
SHARD_MAP = number(1, 2) + blob(2, b"") + blob(2, b"ams.example:7700") + blob(2, b"[::1]:7701")
SERVER_JOIN = framed(32, blob(1, b"job") + blob(2, b":7701") + number(3, 2) + number(4, 1) + number(6, 3) + number(5, 9))
SERVER_WELCOME = framed(33, blob(1, b"") + number(2, 4) + number(3, 4) + number(4, 2) + number(5, 3) + number(6, 1))
MAPPED = framed(34, SHARD_MAP)
MEMBERS = framed(23, number(1, 1 << 50) + number(2, 9) + blob(3, b"\xfd\x01"))
SENT_ON = framed(3, number(1, 6) + blob(2, b"server 2 of 3") + blob(3, b"ams.example:7700"))


# fuzz_server.cc's World::Step and Hostile::Act. The first byte says what the job is like.
def write_server():
    insider = lambda *what: bytes([3]) + bytes(what)
    stranger = lambda *what: bytes([0x43]) + bytes(what)
    run = lambda rounds, losses=0: bytes([0, losses, rounds - 1])
    join = insider(4, 1) + run(8)
    window = lambda high, low, kind=0: insider(5, kind, 1, 0, 0, 0, 0, 0, 0, 128, 0, 0, 0, 0, 0, high, 0, low, 0, 0, 0)
    chunk = lambda index, low, value: bytes([low, 0, 0, index, 0, value, 0])
    chunks = insider(7, 3) + chunk(0, 0, 1) + chunk(1, 0, 3) + chunk(2, 0, 2)
    mixed = insider(7, 3) + chunk(0, 0, 1) + chunk(1, 1, 3) + chunk(2, 1, 2)
    for name, kind in (("residual", 0), ("lossy", 1), ("shift", 5 * 4), ("bounded", 2 + 0x20 + 0x40), ("ordered", 0x80 + 8)):
        train = join + (window(3, 0) + chunks + run(16)) * 2 + window(1, 2) + mixed + run(16, 0x11)
        write("server", name, bytes([kind]) + train + insider(3, 10, 8, 0, 0) + run(8))
    # A push of 100 that weighs 1e9, of each policy that forgets: its share is bounded.
    heavy = insider(11, 0, 2, 11, 1) + run(8)
    for policy in (0, 1):
        write("server", f"heavy_{policy}", bytes([policy * 4]) + heavy * 2)
    declare = lambda name, optimizer: insider(1, 1, 7, name, 0, 0, optimizer, 1, 1, 1, 128)
    write("server", "declares", bytes([0]) + join + declare(1, 0) + declare(2, 1) + declare(2, 2) + run(16))
    write("server", "messages", bytes([0x22]) + join + insider(0, 3, 1, 0, 0, 0) + insider(0, 4, 1, 0) + run(8) +
          stranger(0, 5, 1) + stranger(0, 6, 1) + run(8) + insider(0, 7, 0, 0) + run(16))
    write("server", "bench", bytes([0x20]) + stranger(0, 6, 1) + run(8) + b"\x43" + window(3, 3)[1:] + b"\x43" + chunks[1:] + run(8))
    write("server", "changed", bytes([0]) + join + window(3, 0) + chunks + bytes([2, 3, 0, 9, 9, 0, 4, 1, 0, 50, 200, 1]) + run(16))


# fuzz_tls.cc: who meets whom, context, then Path::Step: what is done to the bytes to the client (0) or server (1).
def write_tls():
    to_server, to_client = bytes([1]), bytes([0])
    handshake = to_server + to_client + to_server
    for kind in range(18):
        write("tls", f"meeting_{kind}", bytes([kind, 1, 9, 0]) + handshake)
    change = lambda to, at, value: bytes([6 + to, 0]) + struct.pack(">H", at) + bytes([3, value])
    for kind in (0, 1):
        write("tls", f"hello_changed_{kind}", bytes([kind, 1, 9, 0]) + change(1, 11, 3) + handshake)
        write("tls", f"server_changed_{kind}", bytes([kind, 1, 9, 0]) + to_server + change(0, 45, 1) + to_client)
        write("tls", f"alert_{kind}", bytes([kind, 1, 9, 0]) + to_server + bytes([8, 21, 2, 2, 40]) + handshake)
        write("tls", f"hello_made_up_{kind}", bytes([kind, 1, 9, 0]) + bytes([11, 1, 40, 3, 3]) + bytes(38) + handshake)
        write("tls", f"replayed_{kind}", bytes([kind, 1, 9, 0]) + to_server + bytes([13, 0, 0, 0, 1, 0]) + handshake)
    for side in (0, 1):
        write("tls", f"damaged_{side}", bytes([0xe0, side, 1, 0, 1, 0, 3, 5]))


def write_options():
    words = {
        0: [b"rate 200mbit delay 25ms 2ms loss 2% queue 50ms", b"rate=1gbit,delay=40ms,loss=gemodel,5%,burst,10,outage=3s..5s",
            b"unlimited jitter-reorders reorder 1% duplicate 2% corrupt 0.1% mtu 1400b limit 64kib"],
        1: [b"drop=0.02,delay=25ms,jitter=2ms,dup=0.01,reorder=0.01,corrupt=0.001,rate=200mbit,queue=50ms,seed=7,side=in"],
        2: [b"1.5gbit"], 3: [b"250us"], 4: [b"64kib"], 5: [b"2.5%"],
        6: [b"sgd:lr=0.1,momentum=0.9,nesterov,weight_decay=0.0001", b"adamw:lr=0.001,beta1=0.9,beta2=0.999,eps=1e-8"],
        7: [b"server.example:7700", b"[::1]:7700"],
        8: [b"--real\n1e3\n--natural\n18446744073709551615\n--small\n7\n--whole\n-5\n--share=0.5\n--names\na,b"],
        9: [b"--listen\n0.0.0.0:7700\n--workers\n4\n--key\njob.key\n--allow\nfra:0+fra2,nyc,tool/ops\n--next-key\nnext.key\n--policy\nshift\n--topk=0.1",
            b"--capacity\n200mbit\n--worker-rate-cap\n1gbit\n--no-grants\n--insecure\n--insecure-bind\n--fec-k\n8"],
        10: [b"--join\n127.0.0.1:7700\n--rank\n1\n--world-size\n4\n--optimizer\nadam:lr=0.001\n--wire-dtype\nint8",
             b"--rate-cap\n1gbit\n--rate-floor\n1mbit\n--idle-timeout\n5\n--weight\n2.5\n--local-steps\n8\n--insecure"],
        11: [b"# a server\nworkers = 4\nlisten = \"0.0.0.0:7700\"\ninsecure = true\nallow = [\"fra\", \"nyc\"]\nloss-policy=zero",
             b"[section]\nworkers=1\n[[x]]\na.b.c = 'd'\n; comment\nshift-alpha: 0.5\n"],
        13: [b"fra\nnyc:1-3x8\nworker/ams:0+ams2\ntool/ops", b"a:0-2\nb:2", b"a+c\nb+c\ntool/a"],
        12: [b"join=127.0.0.1:7700\nrank=0\nworld-size=2\nweight=2.5\ninsecure=on\nwire-dtype=int8\n",
             b"rounds=3\nwire-dtype=int8\nconstant-lr=on\nstate-every=5\n"],
    }
    for kind, texts in words.items():
        for number_, text in enumerate(texts):
            write("options", f"o{kind}_{number_}", bytes([kind]) + text)


# fuzz_jobs_file.cc: whether there is a capacity (and a shift), the machine's memory, then the file.
def write_jobs_file():
    two = (b"# two jobs\ninsecure = true\nworkers = 4\ncheckpoint-every = 50\nallow = [\"fra\", \"nyc\"]\n\n"
           b"[job.resnet]\nlisten = \"127.0.0.1:7701\"\nworkers = 2 # fewer\nshare = 3\npolicy = \"zero\"\n"
           b"  [job.\"bert large\"]   # the second\nlisten = \"127.0.0.1:7702\"\ninsecure = false\nkey = \"b.key\"\n"
           b"max-memory-bytes = \"2gb\"\ncheckpoint-dir = \"d/./x\"\njson = \"b.json\"\n")
    texts = {"two": two, "ports": b"listen = \":0\"\nonce = true\n[job.a]\n[job.b]\n[job.c]\nmax-memory-bytes = 5000\n",
             "same_port": b"[job.a]\nlisten = \"0.0.0.0:7\"\n[job.b]\nlisten = \"10.0.0.1:7\"\n",
             "same_directory": b"listen = \":0\"\n[job.a]\ncheckpoint-dir = \"d/\"\n[job.b]\ncheckpoint-dir = \"d\"\n",
             "same_name": b"[job.a]\n[job.\"a\"]\n", "range": b"workers = 5000\n[job.a]\nmin-workers = 3\n",
             "unknown": b"[job.a]\nworkres = 3\n", "process": b"[job.a]\ncapacity = \"1gbit\"\njob = \"b\"\n",
             "excludes": b"[job.a]\nkey = \"k\"\ninsecure = true\n", "list": b"[job.a]\nallow = [\"fra\",\n\"nyc\"]\n",
             "control": b"[job.\x1b]\n[job.a]\npolicy = \"\x1b[2J\"\n", "none": b"workers = 2\n"}
    for name, text in texts.items():
        for kind in (0x00, 0x94):
            write("jobs_file", f"{name}_{kind >> 7}", bytes([kind, 0, 4, 0, 0]) + text)


# fuzz_offload.cc's Play: the shape of the site and its policy, then steps.
def write_offload():
    post = lambda node, rank, mid, deliver=7: bytes([10, node, rank, 1, mid, deliver])
    odd = lambda node, rank, opcode, mid, *rest: bytes([10, node, rank, 250, opcode, mid, *rest])
    wait = lambda us, deliver=7: bytes([200, us >> 8, us & 255, deliver])
    everybody = lambda mid: b"".join(post(node, rank, mid) for node in range(3) for rank in range(2))
    lose = bytes([100, 0, 30, 0])
    repeat = bytes([100, 0, 100, 3])
    again = bytes([100, 0, 130, 5, 3])
    damage = bytes([100, 0, 170, 0, 9, 4, 3])
    forge = lambda field, value: bytes([100, 0, 250, field, value, 3])
    for name, shape in (("ring", 0x50), ("tree", 0x54), ("aggregator", 0x51), ("small_pool", 0x00), ("no_scratch", 0x52)):
        for policy in range(4):
            honest = bytes([shape, policy]) + everybody(0) + wait(900) * 4 + everybody(1) + wait(900) * 8
            write("offload", f"{name}_{policy}", honest)
        trouble = b"".join(post(node, rank, 0, 1) + lose + repeat + again for node in range(3) for rank in range(2))
        write("offload", name + "_lossy", bytes([shape, 2]) + trouble + (wait(900, 2) + repeat + lose) * 6 + wait(60000) * 3)
        forged = b"".join(post(node, 0, 0, 0) + forge(field, 1) for node in range(3) for field in range(12))
        write("offload", name + "_forged", bytes([shape, 2]) + forged + damage + wait(3000) * 6)
        late = everybody(2)[:24] + wait(40000) * 4 + everybody(2)[24:] + wait(900) * 4
        write("offload", name + "_late", bytes([shape, 2]) + late + bytes([172, 1, 1, 3]) + everybody(3) + wait(900) * 3)
        for opcode in range(9):
            # flags, operation, first seg, segs, root node and rank, then four times "as it was"
            ask = b"".join(odd(node, rank, opcode, 1, 2, 0, 0, 0, 1, 1, 0, 0, 0, 0, 7) for node in range(3) for rank in range(2))
            write("offload", f"{name}_opcode_{opcode}", bytes([shape, 2]) + ask + wait(900) * 4 + wait(60000) * 2)
    write("offload", "node_dies", bytes([0x50, 2]) + everybody(0)[:24] + bytes([181, 0, 2, 3]) + wait(900) * 3)


def main():
    for line in (HERE.parent / "golden" / "vectors.txt").read_text().splitlines():
        name, _, data = line.partition(" ")
        if name.startswith("#"):
            continue
        kind, variant = name.split("/")
        if kind == "chunk":
            write("chunk", variant, b"\x00" + bytes.fromhex(data))
        elif kind != "datagram" and variant not in BIG:
            write("frames" if kind == "frame" else "packet_header", kind[0] + "_" + variant, bytes.fromhex(data))
    # First byte: pieces of 1 + that many bytes.
    write("control", "worker", b"\x07" + JOIN + DECLARE + PULL + BARRIER)
    write("control", "server", b"\xff" + WELCOME + START + DECLARED + REPORT + LEAVE)
    write("control", "members", b"\x02" + WELCOME + MEMBERS + START + MEMBERS)
    write("control", "bytewise", b"\x00" + JOIN + LEAVE)
    write("control", "shards", b"\x0b" + SERVER_JOIN + SERVER_WELCOME + MAPPED + SENT_ON)

    dense = struct.pack(">IHHBBH", 3, 4, 3, 0, 9, 0) + struct.pack("<4f", 1, 0, -2.5, 1e-30)
    sparse = struct.pack(">IHHBBH", 3, 40, 2, 1, 9, 0) + bytes([1, 0, 0, 0, 0x80, 0, 0, 0]) + struct.pack("<2f", 1, -2.5)
    metadata = struct.pack(">BBBBIIQQIfff", 0, 1, 0, 0, 7, 0, 12, 100352, 348, 60, 3.5, 0.25)
    write("chunk", "dense", b"\x00" + dense)
    write("chunk", "sparse_padded", b"\x00" + sparse + bytes(16))
    write("chunk", "metadata", b"\x01" + metadata)
    for name, kind in (("shorter_bfloat16", 5), ("shorter_float16", 6), ("shorter_int8", 7)):
        write("chunk", name, bytes([3, kind]) + struct.pack("<11f", 0, -0.0, 1, 3e38, 1e-45, 65519, 6e-8, -3, 0.1, 127, 5))
    write("chunk", "floats", b"\x02" + struct.pack("<6f", 0, -0.0, 1, float("nan"), float("inf"), 1e-45))
    # Operations: fuzz_connection.cc's World::Step and Application::Act.
    run = lambda losses, rounds: bytes([2, losses, rounds - 1])
    act = lambda side, *what: bytes([14 + side]) + bytes(what)
    window = lambda side, key, high, low, fec: act(side, 1, key, 0, high, low, 59, 0 if not fec else 1, 2, 0)
    def write_connection(name, steps):  # the first byte: without keys, with keys, keys with long flights and cookies
        for variant, kind in (("", 0), ("_keys", 1), ("_keys_cookies", 7)):
            write("connection", name + variant, bytes([kind]) + steps)

    hello = run(0, 12)
    write_connection("handshake", hello)
    write_connection("handshake_loss", run(0x52, 64) + run(0x11, 64) + run(0, 64))
    write_connection("control", hello + act(0, 0, 15, 0) + act(1, 0, 3, 9) + run(0, 60))
    write_connection("window", hello + window(0, 1, 50, 40, False) + run(0, 60))
    write_connection("window_fec_loss", hello + window(0, 1, 50, 40, True) + run(0x11, 60) + act(1, 3, 1) + run(0, 60))
    write_connection("both_ways", hello + window(0, 1, 50, 50, True) + window(1, 1, 50, 9, True) + run(0x40, 60) +
          act(0, 3, 2) + act(1, 3, 2) + run(0x01, 60) + act(0, 7, 255) + run(0, 20))
    write_connection("grant", hello + act(1, 5, 1, 0x20, 0) + window(0, 1, 50, 40, True) + run(0, 60))
    # A wary server: a window before it admits the worker, one while it does, one after it has taken that back.
    admit = lambda yes: act(1, 7, 1 if yes else 0)
    for kind in (16, 17):
        write("connection", f"wary_{kind}", bytes([kind]) + hello + window(0, 1, 50, 40, True) + run(0, 20) +
              act(0, 0, 255, 15) + admit(True) + window(0, 2, 50, 40, True) + run(0x11, 40) + admit(False) +
              window(0, 3, 50, 40, False) + run(0, 40))
    # Invented packets: a short one with frames (kind 0), a DATA packet (kind 1), a long one (kind 7).
    frames = bytes.fromhex("0100") + bytes.fromhex("140a0a")
    write_connection("invented", hello + bytes([11, 0, len(frames)]) + frames + bytes([11, 7, 0, 0, 9, 4]) + frames[:4] +
          run(0, 60))
    write_server()
    write_tls()
    write_options()
    write_jobs_file()
    write_offload()
    header = json.dumps({"__metadata__": {"format": "pt"},
                         "b": {"dtype": "F32", "shape": [1], "data_offsets": [8, 12]},
                         "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    write("checkpoint", "parameters", b"\0" + struct.pack("<Q", len(header)) + header + bytes(12))
    manifest = {"format": 1, "generation": 6, "job": "default", "rounds": 11, "written": "2026-11-25T14:01:44Z",
                "settings": {"policy": "residual"},
                "files": {"parameters.safetensors": {"bytes": 100, "sha256": 64 * "a"},
                          "optimizer.safetensors": {"bytes": 120, "sha256": 64 * "b"}},
                "tensors": [{"name": "w", "dtype": "F32", "count": 3, "optimizer": "sgd:lr=1,momentum=0.9",
                             "state": ["momentum_buffer"], "rounds": 11, "shift_epoch": 0}]}
    plain = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
    manifest["sha256"] = hashlib.sha256(plain).hexdigest()
    write("checkpoint", "manifest", b"\1" + json.dumps(manifest, sort_keys=True, indent=1).encode() + b"\n")
    # fuzz_http.cc: size of a piece - 1, whether it is repeated (and how often), then the bytes.
    for name, text in (("get", b"GET /metrics?a=b HTTP/1.1\r\nHost: a\r\n\r\n"), ("head", b"HEAD /healthz HTTP/1.0\n\n"),
                       ("post", b"POST / HTTP/1.1\r\n\r\n"), ("version", b"GET / HTTP/2.0\r\n\r\n"), ("tls", b"\x16\3\1\2\0\1")):
        write("http", name, b"\6\0" + text)
    write("http", "long", b"\x3f\1\xc7GET / HTTP/1.1\r\na: " + 40 * b"x" + b"\r\n")
    # fuzz_watch.cc: size of a piece - 1, then the lines. fuzz_kubeconfig.cc: whether a context is named, then the file.
    pod = b'{"metadata":{"name":"a","namespace":"ns","resourceVersion":"5"},"status":{"phase":"Running"}}'
    lines = [b'{"type":"%s","object":%s}\n' % (kind, pod) for kind in (b"ADDED", b"MODIFIED", b"DELETED")]
    write("watch", "events", b"\6" + b"".join(lines))
    write("watch", "bookmark", b"\6" + lines[0] + b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}\r\n')
    write("watch", "gone", b"\6" + lines[0] + b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}\n')
    write("watch", "full", b"\6" + b"".join(lines[0].replace(b'"a"', b'"%d"' % i) for i in range(5)))
    write("watch", "cut", b"\6" + lines[0] + lines[1][:20])
    write("watch", "long", b"\6" + lines[0] + 600 * b"x" + b"\n")
    config = (b"current-context: here\ncontexts:\n- {name: here, context: {cluster: k, user: u, namespace: n}}\n"
              b"clusters:\n- {name: k, cluster: {server: 'https://10.0.0.1:6443', certificate-authority-data: Q0E=}}\n"
              b"users:\n- {name: u, user: {%s}}\n")
    for name, user in (("token", b"token: seCret"), ("file", b"tokenFile: /t"), ("exec", b"exec: {command: aws}"), ("pair", b"client-certificate-data: YQ==, client-key-data: Yg=="),
                       ("half", b"client-key: k.pem"), ("basic", b"username: a, password: b")):
        write("kubeconfig", name, b"\1" + config % user)
    write("kubeconfig", "alias", b"\0a: &a [*a, *a]\nb: *b\n")
    # fuzz_webhook.cc: the hook, what the API server says of name and permission, whether the body is these bytes, or how many values change.
    review = (b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","resource":{"group":"longhaul.dev",'
              b'"resource":"trainingjobs"},"namespace":"n","operation":"CREATE","userInfo":{"username":"a"},"object":{"metadata":{"name":"a"}}}}')
    write("webhook", "bytes", b"\0\0\1\1" + review)
    for name, hook, change in (("mutate", 1, b"\0"), ("validate", 0, b"\0"), ("annotation", 1, b"\1\x1c\4null"), ("gpus", 0, b"\1\x20\0029x")):
        for operation in range(3):
            write("webhook", name + "_" + "cud"[operation], bytes([hook, 0, 1, 0]) + change + bytes([operation, 1]))
    write("key_file", "psk", b"\xc0longhaul-psk-v1\n# a comment\njob = job\npsk = " + b"0123456789abcdef" * 4 + b"\n")
    for which in range(6):  # changes of a file: kind, which one, then key_files.h's Damage or DamageBlock
        write("key_file", f"text_{which}", bytes([0x40 + which, which, 0, 0, 30, 3, ord("x")]))
        write("key_file", f"block_{which}", bytes([which, which, which % 4, 0, 0, 90, 3, 1]))
    # fuzz_handshake.cc: kind, then operations.
    plain = bytes([0, 16, 0, 16, 0, 16])
    for name, kind in (("short", 0), ("long", 1), ("lossy", 2)):
        write("handshake", name, bytes([kind]) + plain * 8)
    write("handshake", "frames", bytes([0, 3, 0, 0, 12]) + b"handshake ok" + plain * 4 + bytes([3, 1, 200, 0, 9]) + plain)
    opening = bytes([1, 0, 20, 0, 30, 1, 3, 1, 0, 2])
    high = b"".join(bytes([0, i, 0]) for i in range(20) if i not in (3, 7))
    low = b"".join(bytes([120, i, 0]) for i in range(30) if i % 5)
    repair = bytes([200, 0, 0, 0]) + bytes([200, 1, 1, 0]) + bytes([200, 2, 1, 0])
    write("window_rx", "repaired", opening + high + repair + low + bytes([245, 1]))
    write("window_rx", "plain", bytes([1, 0, 20, 0, 30, 1, 3, 0, 0, 2]) + high + low + bytes([240, 0, 20, 0, 30, 1]))
    write("window_rx", "lies", opening + bytes([250, 1, 0, 0, 0, 9, 0, 3]) * 4 + high[:9])


if __name__ == "__main__":
    main()
