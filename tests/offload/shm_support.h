// Sites behind shared memory: a daemon in a thread of the test, and a real one.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "offload/shm/control.h"
#include "offload/shm/rank_memory.h"
#include "offload/shm/site_daemon.h"
#include "tests/offload/rank_arrays.h"

namespace longhaul::offload {

// A folder of its own, removed at the end with what is in it.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  std::string path(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

class ShmSite {
 public:
  virtual ~ShmSite() = default;
  std::string path() const { return folder_.path("site.sock"); }
  std::string where() const { return "unix:" + path(); }
  Device Open(uint8_t rank, uint8_t node = 0) const;

 protected:
  TemporaryFolder folder_;
};

class ThreadSite : public ShmSite {
 public:
  explicit ThreadSite(const SiteOptions& site, uint64_t rank_memory_bytes = uint64_t{1} << 30);
  ~ThreadSite() override;

 private:
  std::unique_ptr<SiteDaemon> daemon_;
  std::thread thread_;
};

// longhaul-offload, killed at the end if it still runs.
class ProcessSite : public ShmSite {
 public:
  // more: arguments. listens: waited for until a rank could connect.
  explicit ProcessSite(const SiteOptions& site, std::vector<std::string> more = {}, bool listens = true);
  ~ProcessSite() override;
  void Start();  // anew, on the same path
  int pid() const { return pid_; }
  // Sends the signal and waits for the end; the exit code, or -signal.
  int End(int signal);
  size_t CountFds() const;
  size_t CountMaps() const;
  Duration CpuTime() const;

 private:
  SiteOptions site_;
  std::vector<std::string> more_;
  bool listens_;
  int pid_ = -1;
};

// A rank's connection without the library: it may write whatever it likes.
class RawRank {
 public:
  // Fails the test where `may_fail` is not set.
  RawRank(const std::string& path, uint8_t rank, bool may_fail = false);
  bool open() const { return memory_.has_value(); }
  RankMemory& memory() { return *memory_; }
  int control() const { return control_.get(); }
  int wake_up() const { return wake_up_.get(); }
  int memory_fd() const { return memory_fd_.get(); }
  // Rings the bell whatever the words say.
  void Wake();
  void Post(const WireRequest& request);
  // The next completion of its ring, within 5 s.
  std::optional<WireCompletion> Next();
  Result<ReceivedReply> Allocate(uint64_t bytes, std::string_view name = {});
  // Whether the daemon ends it within 5 s.
  bool IsEnded();

 private:
  FileDescriptor control_;
  FileDescriptor wake_up_;
  FileDescriptor memory_fd_;
  std::optional<RankMemory> memory_;
  uint32_t tail_ = 0;
  uint32_t head_ = 0;
};

}  // namespace longhaul::offload
