#!/usr/bin/env python3
"""The core libraries know no clock, socket, thread, environment or device: shown by what they do not link to.

    sans_io.py NM LIBRARY...                 names every forbidden symbol that a library refers to
    sans_io.py --expect NAMES NM LIBRARY     self-test: exactly these (comma-separated) must be found
"""
import re
import subprocess
import sys

FORBIDDEN = {
    "clock": r"std::chrono::(_V2::)?(steady|system|high_resolution)_clock::now\(\)"
             r"|clock_gettime|gettimeofday|time|clock|ftime|nanosleep|usleep|sleep|clock_nanosleep",
    "chance": r"std::random_device::.*|getrandom|getentropy|rand|srand|random|srandom|rand_r|drand48|lrand48",
    "network": r"socket|socketpair|bind|connect|listen|accept4?|send|sendto|sendmsg|sendmmsg|recv|recvfrom|recvmsg"
               r"|recvmmsg|poll|ppoll|select|pselect|epoll_\w+|getaddrinfo|asio::.*",
    "thread": r"pthread_create|std::thread::.*|std::jthread::.*|fork|vfork|clone|posix_spawnp?|system|popen",
    "environment": r"getenv|secure_getenv|setenv|putenv",
}


def references(nm, library):
    """Undefined symbols, demangled, with the member that refers to them."""
    output = subprocess.run([nm, "-uC", library], check=True, capture_output=True, text=True).stdout
    member = ""
    for line in output.splitlines():
        if line.endswith(":") and " " not in line:
            member = line[:-1]
        match = re.match(r"\s+[UwW] (.*)$", line)
        if match:
            yield member, re.sub(r"@.*$", "", match[1])


def forbidden(nm, library):
    for member, symbol in references(nm, library):
        for what, pattern in FORBIDDEN.items():
            if re.fullmatch(pattern, symbol):
                yield library, member, symbol, what


def main(arguments):
    expect = None
    if arguments[:1] == ["--expect"]:
        expect, arguments = set(arguments[1].split(",")), arguments[2:]
    if len(arguments) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    nm, libraries = arguments[0], arguments[1:]
    found = [hit for library in libraries for hit in forbidden(nm, library)]
    for library, member, symbol, what in found:
        print("%s(%s): %s (%s)" % (library, member, symbol, what))
    print("%d libraries, %d forbidden references" % (len(libraries), len(found)))
    if expect is not None:
        names = {re.sub(r"\(.*|.*::(?=\w+_clock|random_device|thread::)", "", symbol) for _, _, symbol, _ in found}
        print("found %s\nexpected %s" % (sorted(names), sorted(expect)))
        return 0 if expect <= names else 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
