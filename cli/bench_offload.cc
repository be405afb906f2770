#include "cli/bench_offload.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "base/files.h"
#include "base/process/spawn.h"
#include "cli/child_process.h"

namespace longhaul::cli {
namespace {

using nlohmann::json;

// A figure: in the rows of `list` (none: the bench's one object `object`), the row that has `key` = `value`
// and `mib`, and there `figure`.
struct Wanted {
  const char* what;
  const char* bench;
  const char* list;
  int mib;  // 0: any
  const char* key;
  const char* value;
  const char* figure;  // a JSON pointer
  bool at_most;
  double bar;
  const char* unit;
};

constexpr Wanted kWanted[] = {
    {"4 ranks, zero-copy, 4 MiB", "shm", "throughput", 4, "memory", "shared", "/gb_per_s_in", false, 18,
     "GB/s in"},
    {"- of memcpy", "shm", "throughput", 4, "memory", "shared", "/of_memcpy", false, 0.8, ""},
    {"4 ranks, zero-copy, 64 MiB", "shm", "throughput", 64, "memory", "shared", "/gb_per_s_in", false, 10,
     "GB/s in"},
    {"- of memcpy", "shm", "throughput", 64, "memory", "shared", "/of_memcpy", false, 0.8, ""},
    {"4 ranks, 1 KiB segs copied in, 4 MiB", "shm", "throughput", 4, "memory", "copied in", "/gb_per_s_in",
     false, 6.5, "GB/s in"},
    {"request to completion, 1 KiB, p50", "shm", "latency", 0, "", "", "/p50_us", true, 0.6, "us"},
    {"- p99", "shm", "latency", 0, "", "", "/p99_us", true, 1, "us"},
    {"idle engine", "shm", "idle", 0, "", "", "/core_share", true, 0.01, "of a core"},
    {"veth, plain", "veth", "all_reduce", 0, "case", "plain, offload", "/gbit_per_s", false, 35, "Gbit/s"},
    {"- times recvmmsg", "veth", "all_reduce", 0, "case", "plain, offload", "/of_plain_calls", false, 7, ""},
    {"- of the link", "veth", "all_reduce", 0, "case", "plain, offload", "/of_link", false, 0.95, ""},
    {"veth of 2 Gbit/s, plain, of the link", "link", "all_reduce", 0, "case", "plain, offload", "/of_link",
     false, 0.95, ""},
    {"veth, encrypted", "veth", "all_reduce", 0, "case", "AES-128-GCM, offload", "/gbit_per_s", false, 20,
     "Gbit/s"},
    {"all-reduce, 16 MiB, times gloo", "peers", "all_reduce", 16, "system", "longhaul, shared", "/times/gloo",
     false, 1, ""},
    {"- times OpenMPI", "peers", "all_reduce", 16, "system", "longhaul, shared", "/times/OpenMPI", false, 1,
     ""},
    {"all-reduce, 64 MiB, times gloo", "peers", "all_reduce", 64, "system", "longhaul, shared", "/times/gloo",
     false, 1, ""},
    {"- times OpenMPI", "peers", "all_reduce", 64, "system", "longhaul, shared", "/times/OpenMPI", false, 1,
     ""},
    {"pool of 512 x 1 KiB, of unlimited", "device", "pool", 0, "", "", "/ratio", false, 0.95, ""},
};

int Fail(const std::string& why) {
  std::fprintf(stderr, "longhaul bench offload: %s\n", why.c_str());
  return 1;
}

// What the bench wrote. Its own words go to standard error.
Result<json> Run(const OffloadBench& bench, const BenchOffloadOptions& options) {
  const std::string program = process::Beside(bench.program);
  if (::access(program.c_str(), X_OK) != 0) {
    return Status(StatusCode::kUnavailable, program + " is not there: benches are built by tools/dev build");
  }
  char file[] = "/tmp/longhaul-bench-XXXXXX";
  const FileDescriptor made(::mkstemp(file));
  std::vector<std::string> argv = {program, "--json", file};
  std::istringstream words(bench.arguments);
  for (std::string word; words >> word;) argv.push_back(word);
  if (options.repeats > 0) argv.insert(argv.end(), {"--repeats", std::to_string(options.repeats)});
  if (options.mebibytes > 0) argv.insert(argv.end(), {"--sizes", std::to_string(options.mebibytes)});
  auto child = ChildProcess::Start(bench.program, argv, {}, "");
  if (!child.ok()) return child.status();
  const auto show = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };
  while (child->output() >= 0) {
    pollfd readable{child->output(), POLLIN, 0};
    ::poll(&readable, 1, -1);
    child->ReadLines(show);
  }
  const bool ended = child->WaitFor(std::chrono::seconds(10));
  json found = json::parse(std::ifstream(file), nullptr, false);
  ::unlink(file);
  if (!ended || child->exit_code() != 0 || !found.is_object())
    return Status(StatusCode::kInternal, std::string(bench.program) + " has failed");
  return found;
}

std::optional<double> Find(const json& found, const Wanted& wanted) {
  if (!found.contains(wanted.bench) || !found[wanted.bench].contains(wanted.list)) return std::nullopt;
  const json& list = found[wanted.bench][wanted.list];
  const json::json_pointer figure(wanted.figure);
  const auto is = [&](const json& row) {
    return (wanted.mib == 0 || row.value("mib", 0) == wanted.mib) &&
           (*wanted.key == '\0' || row.value(wanted.key, "") == wanted.value);
  };
  for (const json& row : list.is_array() ? list : json::array({list})) {
    if (is(row) && row.contains(figure)) return row[figure].get<double>();
  }
  return std::nullopt;
}

void Print(const json& found) {
  std::printf("%-40s %12s %12s\n", "", "wanted", "here");
  for (const Wanted& wanted : kWanted) {
    const auto here = Find(found, wanted);
    const bool met = here && (wanted.at_most ? *here <= wanted.bar : *here >= wanted.bar);
    char text[32] = "not measured";
    if (here) std::snprintf(text, sizeof text, "%.3g", *here);
    std::printf("%-40s %5s %6.4g %12s %s%s\n", wanted.what, wanted.at_most ? "<=" : ">=", wanted.bar, text,
                wanted.unit, here && !met ? "  missed" : "");
  }
}

}  // namespace

int RunBenchOffload(const BenchOffloadOptions& options) {
  if (options.json_file != "-") {
    if (Status prepared = PrepareResultFile(options.json_file); !prepared.ok())
      return Fail(prepared.message());
  }
  json found = json::object();
  std::string failures;
  for (const OffloadBench& bench : kOffloadBenches) {
    if (!options.only.empty() && std::ranges::count(options.only, bench.name) == 0) continue;
    auto result = Run(bench, options);
    if (result.ok()) {
      found[bench.name] = std::move(*result);
    } else {
      failures += (failures.empty() ? "" : "; ") + result.status().message();
    }
  }
  if (options.json_file != "-") Print(found);
  const std::string text = found.dump(2) + "\n";
  Status written = options.json_file == "-"    ? WriteAll(STDOUT_FILENO, text)
                   : options.json_file.empty() ? Status::Ok()
                                               : WriteFileAtomically(options.json_file, text);
  if (!written.ok()) return Fail(written.message());
  return failures.empty() ? 0 : Fail(failures);
}

}  // namespace longhaul::cli
