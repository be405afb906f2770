// A file of --jobs from bytes (server/program/jobs_file), and the memory that its jobs are given.
//
// Holds: a file is refused in printable words with a line of it, or all of it is taken; jobs have names of
// their own that a log and a page can show, sections where they say, options in their range, and no port,
// directory or file in common; the same file reads the same; bounds on memory that a job has are left as they
// are, the others' fit what the machine has.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "server/program/jobs_file.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/property.h"

using namespace longhaul;          // NOLINT
using namespace longhaul::server;  // NOLINT

namespace {

std::string PathOf(std::string_view text) {
  static const int file = ::memfd_create("jobs", MFD_CLOEXEC);
  FUZZ_REQUIRE(::ftruncate(file, 0) == 0);
  FUZZ_REQUIRE(::pwrite(file, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
  return "/proc/self/fd/" + std::to_string(file);
}

std::vector<std::string_view> Lines(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

bool IsPrintable(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
}

void CheckRefusal(const Status& status, const std::string& path, size_t lines) {
  FUZZ_REQUIRE(status.code() == StatusCode::kInvalidArgument);
  const std::string& message = status.message();
  FUZZ_REQUIRE(message.starts_with("jobs file " + path) && IsPrintable(message));
  const std::string_view mark = ", line ";
  const size_t at = message.find(mark);
  FUZZ_REQUIRE(at != std::string::npos || lines == 0);
  if (lines == 0) return;
  size_t line = 0;
  std::from_chars(message.data() + at + mark.size(), message.data() + message.size(), line);
  FUZZ_REQUIRE(line >= 1 && line <= std::max<size_t>(lines, 1));
}

void CheckJob(const JobFlags& job, const std::vector<std::string_view>& lines) {
  FUZZ_REQUIRE(!job.name.empty() && job.name.size() <= 256 && IsPrintable(job.name));
  FUZZ_REQUIRE(job.name.find_first_of("\"\\") == std::string::npos);
  FUZZ_REQUIRE(job.line >= 1 && static_cast<size_t>(job.line) <= lines.size());
  FUZZ_REQUIRE(lines[static_cast<size_t>(job.line) - 1].find("[job.") != std::string_view::npos);
  const ServerOptions& o = job.flags.server;
  FUZZ_REQUIRE(o.job == job.name);
  FUZZ_REQUIRE(o.workers >= 1 && o.workers <= 1024 && o.min_workers <= o.workers);
  FUZZ_REQUIRE(o.start_workers <= o.workers && o.datagram_bytes >= 1200 && o.datagram_bytes <= 65507);
  FUZZ_REQUIRE(!o.insecure || o.key_file.empty());
  FUZZ_REQUIRE(job.flags.share >= 1 && job.flags.share <= 1000);
  FUZZ_REQUIRE(job.flags.capacity == "auto" && job.flags.metrics.empty() && job.flags.jobs_file.empty());
  JobSpec spec = o.job_spec;  // every field is in its range; that two fit together the server checks
  spec.priority = Priority::kEnergy;
  FUZZ_REQUIRE(spec.Validate().ok());
}

void CheckApart(const std::vector<JobFlags>& jobs) {
  std::set<std::string> names, ports, directories, files;
  for (const JobFlags& job : jobs) {
    const ServerOptions& o = job.flags.server;
    FUZZ_REQUIRE(names.insert(job.name).second);
    const std::string port = o.listen.substr(o.listen.rfind(':') + 1);
    uint16_t number = 0;
    std::from_chars(port.data(), port.data() + port.size(), number);
    if (number != 0) FUZZ_REQUIRE(ports.insert(o.listen).second);
    if (!o.checkpoint_dir.empty()) FUZZ_REQUIRE(directories.insert(o.checkpoint_dir).second);
    if (!job.flags.json_file.empty()) FUZZ_REQUIRE(files.insert(job.flags.json_file).second);
  }
}

void TryMemory(uint64_t available, std::vector<JobFlags> jobs) {
  const std::vector<JobFlags> before = jobs;
  const Status divided = DivideMemory(available, &jobs);
  FUZZ_REQUIRE(divided.ok() || divided.code() == StatusCode::kInvalidArgument);
  FUZZ_REQUIRE(divided.ok() || IsPrintable(divided.message()));
  const uint64_t most = available - available / 8;
  uint64_t given = 0;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const int64_t was = before[i].flags.server.max_memory.value();
    const int64_t is = jobs[i].flags.server.max_memory.value();
    if (was != 0 || !divided.ok() || available == 0) {
      FUZZ_REQUIRE(is == was);
      continue;
    }
    FUZZ_REQUIRE(is > 0);
    given += static_cast<uint64_t>(is);
  }
  FUZZ_REQUIRE(given <= most);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzInput in(data, size);
  const uint8_t kind = in.U8();
  const uint64_t available = uint64_t{in.U32()} << (kind % 32);
  const ByteSpan rest = in.Bytes(1024);  // each section makes all options anew: 100 of them cost 0.1 s
  const std::string_view text(reinterpret_cast<const char*>(rest.data()), rest.size());
  const std::string path = PathOf(text);
  const std::vector<std::string_view> lines = Lines(text);
  const auto jobs = ReadJobs(path, (kind & 0x80) != 0);
  if (!jobs.ok()) return CheckRefusal(jobs.status(), path, lines.size()), 0;
  FUZZ_REQUIRE(!jobs->empty() && jobs->size() <= kMaxJobs);
  for (const JobFlags& job : *jobs) CheckJob(job, lines);
  FUZZ_REQUIRE(std::ranges::is_sorted(*jobs, {}, &JobFlags::line));
  CheckApart(*jobs);
  const auto again = ReadJobs(path, (kind & 0x80) != 0);
  FUZZ_REQUIRE(again.ok() && again->size() == jobs->size());
  for (size_t i = 0; i < jobs->size(); ++i) FUZZ_REQUIRE((*again)[i].options == (*jobs)[i].options);
  TryMemory(available, *jobs);
  return 0;
}
