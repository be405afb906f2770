#!/usr/bin/env python3
"""Who may include whom: the arrows of docs/internals/architecture.md, counted.

    includes.py ROOT              names every include that points up or sideways, and every folder without a rule
    includes.py --self-test       shows that the guard can fail
    includes.py --mutations ROOT  adds a dozen wrong includes to the real tree, one at a time: each must be found
"""
import pathlib
import re
import sys

# Unit: the files that belong to it (first match wins), what they may include of ours, what of other libraries.
# Units may always include themselves. "os" = headers of the operating system, "threads" = std threads and waiting.
UNITS = [
    # name         files                                     ours                                    libraries
    ("public",     r"include/longhaul/",                     "",                                     ""),
    ("ps_public",  r"include/ps/",                           "",                                     "files locks threads"),
    ("flags",      r"base/flags/",                           "public base",                          "cli files json"),
    ("process",    r"base/process/",                         "public base",                          "os files locks threads spdlog seccomp"),
    ("disk",       r"base/disk/",                           "public base",                          "os files"),
    ("base",       r"base/",                                 "public",                               ""),
    ("control",    r"proto/control[._]",                     "public base wire",                     "protobuf"),
    ("wire",       r"proto/",                                "public base",                          ""),
    ("coder",      r"codec/fec/erasure_coder\.h",            "public base",                          ""),
    ("kernels",    r"codec/chunk/kernels/",                  "public base",                          ""),
    ("chunk",      r"codec/chunk/",                          "public base wire kernels",             "eigen"),
    ("fec",        r"codec/fec/",                            "public base coder",                    "erasurecode os-log locks"),
    ("policy",     r"codec/policy/",                         "public base chunk",                    "eigen files"),
    ("reduce",     r"offload/reduce/",                       "public base",                          "hwy"),
    ("straggler",  r"offload/straggler/",                    "public base",                          ""),
    ("ringsim",    r"offload/ringsim/",                      "public base straggler",                ""),
    ("offload_engine", r"offload/engine/",                   "public base reduce straggler",         ""),
    ("offload_port", r"offload/port/",                       "public base offload_engine",           "os locks"),
    ("offload_shm", r"offload/shm/",                         "public base offload_engine offload_port", "os locks threads"),
    ("offload_udp", r"offload/udp/",                         "public base offload_engine offload_port crypto keys udp", ""),
    ("offload_main", r"worker/offload/",                      "public flags process base offload_shm offload_udp keys site_relay client_shell health", "os cli spdlog json files locks"),
    ("security",   r"transport/core/security/",              "public base wire",                     ""),
    ("recovery",   r"transport/core/recovery/",              "public base wire",                     ""),
    ("rate",       r"transport/core/rate/",                  "public base recovery",                 "eigen"),
    ("path",       r"transport/core/path/",                  "public base wire security recovery",   ""),
    # What of the core its users see: the types of windows, connection and endpoint.
    ("window_types", r"transport/core/window/(window_types|close_rule|fec_policy)\.h", "public base wire coder window", ""),
    ("surface",    r"transport/core/(connection/(connection|events)|endpoint/endpoint)\.h",
                                                             "public base wire coder security rate window_types connection endpoint core", ""),
    ("window",     r"transport/core/window/",                "public base wire coder recovery window_types", ""),
    ("connection", r"transport/core/connection/",            "public base wire coder security recovery rate path window surface window_types core", ""),
    ("endpoint",   r"transport/core/endpoint/",              "public base wire security connection surface window_types core", ""),
    ("core",       r"transport/core/[^/]*$",                 "base",                                 ""),
    ("crypto",     r"transport/crypto/",                     "public base security",                 "openssl ipsecmb"),
    ("keys",       r"transport/keys/",                       "public base security crypto",          "os files"),
    ("udp",        r"transport/udp/",                        "public base core link",                "asio os files locks threads"),
    # The daemons' port for probes and scrapes.
    ("health",     r"health/",                               "public base wire udp",                 "asio prometheus cli files locks threads"),
    ("tun",        r"wan/(tun/|main)",                       "public flags process base link",                     "asio os files threads locks cli spdlog json"),
    ("link",       r"wan/",                                  "public base",                          ""),
    # Programs see the public surface, their flags, keys and the units of links.
    ("server_main", r"server/(main\.cc|program/)",           "public flags process base policy keys link udp server_shell server_metrics load_sink health grants report", "os files threads locks cli spdlog json"),
    ("image",      r"server/tensor/job_image\.h",           "public base policy",                   ""),
    # Checkpoints: paths and bytes; the system's files behind an interface.
    ("store",      r"server/store/",                         "public base disk policy image",        "files openssl json"),
    ("server_shell", r"server/(server|daemon|registration|machine_memory|checkpoint_thread|redo_thread)\.(cc|h)", "public flags base wire control fec keys udp server server_settings job report server_json member image store disk", "asio os files threads locks json"),
    ("server_json", r"server/report/server_json\.",          "public flags base report round member grants", "json files"),
    ("server_metrics", r"server/report/server_metrics\.",    "public base surface report member grants health", ""),
    # The server's rooms, lowest first.
    ("server_settings", r"server/settings\.",               "public base policy",                   ""),
    ("member",     r"server/member/",                        "public base wire control security surface window_types image", "files"),
    ("tensor",     r"server/tensor/",                        "public base wire coder chunk policy surface window_types server_settings image", "eigen"),
    ("grants",     r"server/grants/",                        "public base surface window_types member server_settings", ""),
    ("results",    r"server/results/",                       "public base wire coder chunk policy surface window_types member tensor", ""),
    ("round",      r"server/round/",                         "public base wire coder control chunk policy surface window_types member tensor results server_settings image", ""),
    ("report",     r"server/report/",                        "public base policy surface window_types member grants round tensor image", "files"),
    ("job",        r"server/job/",                           "public base wire control chunk security surface window_types core member tensor grants results round report server_settings image", ""),
    ("server",     r"server/",                               "public base wire coder control policy security surface core job report server_settings image", ""),
    ("client_shell", r"worker/client/(client\.cc|client_impl\.h|wan_client\.|sharded_client\.|moving_client\.|operation\.cc|operation_state\.h|worker_state\.)", "public base disk wire fec policy client keys udp core site", "files threads locks"),
    # For other languages: a user of the public classes.
    ("c_api",      r"worker/c/",                             "public flags base wire chunk",         "os cli json locks"),
    # The interface of ps-lite: a node, and its shell.
    ("pslite_shell", r"pslite/(postoffice|settings)\.",      "public ps_public flags base fec keys udp c_api pslite", "files locks threads"),
    ("pslite",     r"pslite/",                               "public ps_public base wire coder security surface window_types core", ""),
    # Of a site: its relay is a user of the client, and knows of its job and how to drop it; its ranks are clients.
    ("site_relay", r"worker/site/(site_relay|site_leader|leadership|relay_tensors|rank_desk|collectives|aside)\.", "public base site client_shell", "threads locks"),
    ("site",       r"worker/site/",                          "public base wire control policy client client_shell", "os threads locks protobuf"),
    ("status",     r"worker/client/status_core\.h",          "public base control core surface window_types",     ""),
    ("client",     r"worker/client/",                        "public base wire coder control chunk policy surface window_types core status", "protobuf files"),
    ("trainer",    r"worker/demo/(dataset|mini_batches|mlp)\.", "public base",                       "eigen files zlib"),
    # A user's program: of the client it knows the public API; the rest is what every program of ours has.
    ("trainer_main", r"worker/demo/main\.cc",                "public flags process base keys demo health", "os files cli spdlog json"),
    ("demo",       r"worker/demo/",                          "public base policy trainer",           "files threads"),
    ("daemon",     r"worker/daemon/",                        "public flags process base",            "os files cli spdlog"),
    # Kubernetes' API: cores without clock and network, then libcurl around them.
    ("kube_core",  r"operator/api/core/",                    "public base",                          "json openssl"),
    ("kube_api",   r"operator/api/",                         "public base kube_core",                "json curl openssl yaml files"),
    # Admission of jobs: decisions without clock and network, then HTTPS around them.
    ("webhook_core", r"operator/webhook/core/",              "public base wire op_resource kube_core", "json openssl"),
    ("webhook",    r"operator/webhook/",                     "public base udp health kube_core kube_api webhook_core", "asio openssl os locks threads"),
    ("load_sink",  r"bench/load/sink\.",                     "public base wire control surface window_types member report job server_settings", ""),
    ("load",       r"bench/load/",                           "public flags process base wire coder control fec surface window_types core keys udp link", "os files threads locks json spdlog"),
    # The operator for Kubernetes: pure, JSON in and out.
    ("op_resource", r"operator/resource/",                   "public base",                          "json openssl"),
    ("op_plan",    r"operator/plan/",                        "public base op_resource",              "json"),
    ("op_reconcile", r"operator/reconcile/",                 "public base op_resource op_plan",      "json openssl"),
    # One thread over the client: what is observed, decided and done; the lease.
    ("op_controller", r"operator/controller/",               "public base kube_core kube_api op_resource op_plan op_reconcile", "json curl openssl locks"),
    ("op_main",    r"operator/(main|metrics)\.",             "public flags process base keys health kube_core kube_api op_reconcile op_controller webhook webhook_core", "os cli spdlog json files"),
    # Training jobs on a cluster, for people: of the operator they know its rules and its client.
    ("jobs",       r"cli/jobs/",                             "public flags base wire udp kube_core kube_api op_resource program", "json yaml files threads locks os cli"),
    ("program",    r"cli/",                                  "public flags store disk process base wire crypto keys udp status tun link load straggler ringsim", "asio os files threads locks cli spdlog json"),
    ("example",    r"examples/",                             "public ps_public",                               "files threads"),
    ("tests",      r"(tests|bench)/",                        "ANY",                                  "ANY"),
]

LIBRARIES = [
    ("asio", r"asio(\.hpp|/)"), ("eigen", r"Eigen/"), ("openssl", r"openssl/"), ("ipsecmb", r"intel-ipsec-mb\.h"), ("hwy", r"hwy/"), ("protobuf", r"google/protobuf/"),
    ("spdlog", r"spdlog/"), ("seccomp", r"seccomp\.h"), ("prometheus", r"prometheus/"), ("erasurecode", r"(liberasurecode/)?erasurecode"), ("cli", r"CLI/"),
    ("json", r"nlohmann/"), ("curl", r"curl/"), ("yaml", r"yaml-cpp/"), ("zlib", r"zlib\.h"), ("os-log", r"syslog\.h"),
    ("os", r"(sys|net|netinet|arpa|linux)/|(unistd|fcntl|poll|sched|signal|pthread|pwd|grp|dirent|ifaddrs|netdb|spawn|termios|syslog|time)\.h|csignal"),
    ("threads", r"(thread|future|condition_variable|semaphore|latch|barrier|stop_token)$"),
    ("locks", r"(mutex|shared_mutex)$"), ("files", r"(fstream|filesystem|cstdio)$"),
]
# std formatting and aborting need <cstdio> in two places of base, base/files, base/signals and base/pages their system calls;
# nothing else of rows 0-2 prints.
EXCEPTIONS = {("base", "cstdio"), ("link", "cstdio"), ("base", "unistd.h"), ("base", "fcntl.h"),
              ("base", "sys/stat.h"), ("base", "csignal"), ("base", "sys/mman.h")}

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
        target = "include/" + header if header.startswith(("longhaul/", "ps/")) else header
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
    if header.startswith(("longhaul/", "ps/")) and unit != "example":  # examples write what users write
        return 'our own header <%s> in angle brackets' % header
    library = library_of(header)
    if library and library not in libraries and "ANY" not in libraries and (unit, header) not in EXCEPTIONS:
        return "%s may not use %s (<%s>)" % (unit, library, header)
    return None


# In a file of this room, an include of a header of that room, or of a library.
MUTATIONS = [
    ("worker/client/", "server/"),                    # a user's client drags the server in
    ("server/round/", "worker/client/"),
    ("server/server.cc", "worker/"),                  # the server's shell
    ("server/round/", "transport/core/connection/"),  # insides of the core
    ("server/results/", "transport/core/window/"),
    ("transport/core/recovery/", "transport/core/endpoint/"),
    ("transport/core/", "<asio.hpp>"),
    ("codec/", "transport/core/"),
    ("cli/", "worker/demo/"),
    ("cli/jobs/", "operator/reconcile/"),
    ("cli/run.cc", "operator/api/"),
    ("worker/demo/main.cc", "worker/client/"),        # the trainer is a user's program
    ("worker/demo/trainer_loop.cc", "worker/client/"),
    ("worker/daemon/main.cc", "worker/demo/"),        # which the launcher does not contain
    ("server/job/", "health/"),
    ("base/", "proto/"),
    ("offload/engine/", "offload/port/"),
    ("offload/reduce/", "offload/engine/"),
    ("offload/shm/", "offload/udp/"),
    ("operator/resource/", "operator/plan/"),
    ("operator/plan/", "operator/reconcile/"),
    ("operator/reconcile/", "<asio.hpp>"),
    ("operator/api/core/", "<curl/curl.h>"),          # cores have no client
    ("operator/api/", "server/"),
    ("operator/webhook/core/", "<asio.hpp>"),         # decisions know no network
    ("operator/webhook/core/", "operator/webhook/"),
    ("worker/client/", "operator/api/"),              # the client library links no libcurl
]


def mutate(root):
    """Each of MUTATIONS, added to a file of the real tree, must be a complaint."""
    missed = 0
    for room, target in MUTATIONS:
        files = [root / room] if room.endswith(".cc") else sorted((root / room).rglob("*.cc"))
        path = files[0].relative_to(root).as_posix()
        headers = [h.relative_to(root).as_posix() for h in sorted(root.glob(target + "**/*.h"))] if target[0] != "<" else []
        if target[0] != "<" and not headers:
            print("MISSED  there is no header in %s" % target)
            missed += 1
            continue
        # Of a room, a header that is not its surface.
        header = next((h for h in headers if unit_of(h)[0] not in ("surface", "window_types", "status")), target.strip("<>"))
        what = complaint(path, target[0] != "<", header, root)
        missed += what is None
        print("%s  %s includes %s: %s" % ("MISSED" if what is None else "caught", path, header, what))
    print("%d mutations, %d missed" % (len(MUTATIONS), missed))
    return 1 if missed else 0


def check(root):
    found = []
    count = 0
    for file in sorted(root.rglob("*")):
        path = file.relative_to(root).as_posix()
        if file.suffix not in (".h", ".cc") or path.startswith(("build", ".", "tests/guards/samples", "tests/install/consumer")):
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
        "server/job/socket.cc:2: job may not use asio",
        "server/job/socket.cc:3: job may not use os",
        "server/job/socket.cc:4: job may not use threads",
        "server/results/up.h:2: results may not include round",
        "server/round/up.h:2: round may not include job",
        "transport/core/sideways.h:3: core may not include job",
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
    if len(arguments) == 2 and arguments[0] == "--mutations":
        return mutate(pathlib.Path(arguments[1]).resolve())
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    count, found = check(pathlib.Path(arguments[0]).resolve())
    print("\n".join(found))
    print("%d files, %d forbidden includes" % (count, len(found)))
    return 1 if found or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
