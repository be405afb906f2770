#!/usr/bin/env python3
"""Who may include whom: the arrows of docs/architecture.md, counted.

    includes.py ROOT          names every include that points up or sideways, and every folder without a rule
    includes.py --self-test   shows that the guard can fail
"""
import pathlib
import re
import sys

# Unit: the files that belong to it (first match wins), what they may include of ours, what of other libraries.
# Units may always include themselves. "os" = headers of the operating system, "threads" = std threads and waiting.
UNITS = [
    # name      files                                        ours                                  libraries
    ("public",  r"include/longhaul/",                        "",                                   ""),
    ("base",    r"base/",                                    "public",                             ""),
    ("coder",   r"codec/erasure_coder\.h",                   "public base",                        ""),
    ("control", r"proto/control[._]",                        "public base wire",                   "protobuf"),
    ("wire",    r"proto/",                                   "public base",                        ""),
    ("codec",   r"codec/",                                   "public base wire coder",             "eigen erasurecode os-log locks files"),
    ("core",    r"transport/core/",                          "public base wire coder",             "eigen"),
    ("crypto",  r"transport/crypto/",                        "public base wire core",              "openssl ipsecmb"),
    ("keys",    r"transport/keys/",                          "public base wire core crypto",       "os files"),
    ("udp",     r"transport/udp/",                           "public base wire coder core link",   "asio os files locks threads"),
    ("tun",     r"wan/(tun/|main)",                     "public base link",                   "asio os files threads locks cli spdlog json"),
    ("link",    r"wan/",                                     "public base",                        ""),
    ("mains",   r"(server|worker)/main\.cc|cli/",            "ANY",                                "asio os files threads locks cli spdlog json"),
    ("shells",  r"(server/(server|server_json)|worker/(client|local_api|trainer_loop|local_steps))\.", "public base wire coder control codec core crypto keys link udp server worker", "asio eigen os files threads locks spdlog json"),
    ("server",  r"server/",                                  "public base wire coder control codec core", "eigen protobuf files"),
    ("worker",  r"worker/",                                  "public base wire coder control codec core", "eigen protobuf files zlib"),
    ("example", r"examples/",                                "public",                             "files threads"),
    ("tests",   r"(tests|bench)/",                           "ANY",                                "ANY"),
]

LIBRARIES = [
    ("asio", r"asio(\.hpp|/)"), ("eigen", r"Eigen/"), ("openssl", r"openssl/"), ("ipsecmb", r"intel-ipsec-mb\.h"), ("protobuf", r"google/protobuf/"),
    ("spdlog", r"spdlog/"), ("erasurecode", r"(liberasurecode/)?erasurecode"), ("cli", r"CLI/"),
    ("json", r"nlohmann/"), ("zlib", r"zlib\.h"), ("os-log", r"syslog\.h"),
    ("os", r"(sys|net|netinet|arpa|linux)/|(unistd|fcntl|poll|sched|signal|pthread|pwd|grp|dirent|ifaddrs|netdb|spawn|termios|syslog|time)\.h|csignal"),
    ("threads", r"(thread|future|condition_variable|semaphore|latch|barrier|stop_token)$"),
    ("locks", r"(mutex|shared_mutex)$"), ("files", r"(fstream|filesystem|cstdio)$"),
]
# std formatting and aborting need <cstdio> in two places of base; nothing else of rows 0-2 prints.
EXCEPTIONS = {("base", "cstdio"), ("link", "cstdio")}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def unit_of(path):
    for name, pattern, ours, libraries in UNITS:
        if re.match(pattern, path):
            return name, set(ours.split()) | {name}, set(libraries.split())
    return None


def library_of(header):
    return next((name for name, pattern in LIBRARIES if re.match(pattern, header)), None)


def complaint(path, quoted, header, root):
    unit, ours, libraries = unit_of(path)
    if quoted:
        target = "include/" + header if header.startswith("longhaul/") else header
        if header == "proto/control.pb.h":
            target = "proto/control.proto"
        owner = unit_of(target)
        if unit == "tests" and "/" not in header and (root / path).with_name(header).exists():
            return None
        if owner is None or not (root / target).exists():
            return 'unknown header "%s": our own are included by their path from the root' % header
        if owner[0] not in ours and "ANY" not in ours:
            return '%s may not include %s ("%s")' % (unit, owner[0], header)
        return None
    if header.startswith("longhaul/") and unit != "example":  # examples write what users write
        return 'our own header <%s> in angle brackets' % header
    library = library_of(header)
    if library and library not in libraries and "ANY" not in libraries and (unit, header) not in EXCEPTIONS:
        return "%s may not use %s (<%s>)" % (unit, library, header)
    return None


def check(root):
    found = []
    count = 0
    for file in sorted(root.rglob("*")):
        path = file.relative_to(root).as_posix()
        if file.suffix not in (".h", ".cc") or path.startswith(("build", ".", "tests/guards/samples")):
            continue
        count += 1
        if unit_of(path) is None:
            found.append("%s:1: no unit in the table of tests/guards/includes.py" % path)
            continue
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            match = INCLUDE.match(line)
            what = match and complaint(path, match[1] == '"', match[2], root)
            if what:
                found.append("%s:%d: %s" % (path, number, what))
    return count, found


def self_test():
    samples = pathlib.Path(__file__).resolve().parent / "samples" / "includes"
    expected = [
        "base/up.h:3: base may not include core",
        "elsewhere/homeless.h:1: no unit",
        "server/socket.cc:2: server may not use asio",
        "server/socket.cc:3: server may not use os",
        "server/socket.cc:4: server may not use threads",
        "transport/core/sideways.h:3: core may not include server",
        "transport/core/sideways.h:4: core may not use protobuf",
        "transport/core/sideways.h:5: unknown header",
    ]
    count, found = check(samples)
    ok = len(found) == len(expected) and all(f.startswith(e) for f, e in zip(found, expected))
    print("\n".join(found))
    print("self-test %s: %d files, %d complaints, %d expected" % ("passed" if ok else "FAILED", count, len(found),
                                                                 len(expected)))
    return 0 if ok else 1


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    count, found = check(pathlib.Path(arguments[0]).resolve())
    print("\n".join(found))
    print("%d files, %d forbidden includes" % (count, len(found)))
    return 1 if found or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
