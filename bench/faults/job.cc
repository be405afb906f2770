#include "bench/faults/job.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "wan/link_options.h"

namespace longhaul::bench::faults {
namespace {

constexpr const char* kServerSite = "A";
// kServerAddress.
constexpr const char* kServerHost = "10.77.1.1";
constexpr size_t kServerPort = 7700;
constexpr size_t kEnginePort = 7500;  // of a site's first engine, on its own loopback interface
// More would be a program that says the same thing for ever.
constexpr size_t kMaxLines = 1u << 20;

void Append(Words* words, const Words& more) { words->insert(words->end(), more.begin(), more.end()); }

}  // namespace

Result<std::unique_ptr<Job>> Job::Start(const JobOptions& options) {
  std::unique_ptr<Job> job(new Job(options));
  if (Status begun = job->Begin(); !begun.ok()) return begun;
  return job;
}

Job::~Job() {
  for (auto& worker : workers_) {
    if (worker) worker->Signal(SIGCONT), worker->Signal(SIGKILL);
  }
  for (cli::ChildProcess& other : others_) other.Signal(SIGKILL);
  for (auto& engine : engines_) {
    if (engine) engine->Signal(SIGCONT), engine->Signal(SIGKILL);
  }
  for (auto& server : servers_) {
    if (server) server->Signal(SIGCONT), server->Signal(SIGKILL);
  }
}

// In a mount namespace of the calling thread's own, which is gone with it.
Status Job::MakeDisk() {
  const std::string disk = File("disk");
  if (::mkdir(disk.c_str(), 0700) != 0) return {StatusCode::kInternal, "cannot make " + disk};
  if (options_.disk_bytes == 0) return {};
  const std::string size = "size=" + std::to_string(options_.disk_bytes);
  if (::unshare(CLONE_NEWNS) == 0 && ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
      ::mount("longhaul", disk.c_str(), "tmpfs", 0, size.c_str()) == 0) {
    return {};
  }
  return {StatusCode::kPermissionDenied, "cannot mount a small disk for the servers (" +
                                             std::string(std::strerror(errno)) + "): run it as root"};
}

void Job::FillDisk() {
  const std::vector<char> piece(1 << 16, 'x');
  const std::string path = File("disk/full");
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (file < 0) return OnLine("bench", "cannot fill the disk");
  for (size_t size = piece.size(); size > 0; size /= 2) {
    while (::write(file, piece.data(), size) > 0) {
    }
  }
  ::close(file);
}

void Job::EmptyDisk() { ::unlink(File("disk/full").c_str()); }

Status Job::Begin() {
  auto protection = Protection::Make(false);
  if (!protection.ok()) return protection.status();
  protection_.emplace(std::move(*protection));
  const auto link = wan::ParseLinkOptions(options_.link);
  if (!link.ok()) return link.status();
  wan::TunWan::Options wan{
      .sites = {kServerSite}, .link = *link, .seed = options_.seed, .backend = wan::Backend::kTun};
  for (size_t worker = 0; worker < options_.workers; ++worker) {
    const std::string site = WorkerSite(worker);
    if (std::ranges::find(wan.sites, site) == wan.sites.end()) wan.sites.push_back(site);
  }
  if (Status disk = MakeDisk(); !disk.ok()) return disk;
  auto up = wan::TunWan::Up(std::move(wan));
  if (!up.ok()) return up.status();
  wan_ = *std::move(up);
  addresses_.assign(options_.workers, 1);
  servers_.resize(options_.servers);
  for (size_t server = 0; server < options_.servers; ++server) StartServerAgain(server);
  if (!IsListening("server", options_.servers)) {
    return {StatusCode::kInternal, "the server does not listen: " + LastLine(scratch_.File("server.0.log"))};
  }
  engines_.resize(options_.sites * kEnginesOfSite);
  for (size_t engine = 0; engine < engines_.size(); ++engine) StartEngineAgain(engine);
  if (!IsListening("engine", engines_.size()))
    return {StatusCode::kInternal, "a longhaul-offload does not listen"};
  for (size_t worker = 0; worker < options_.workers; ++worker) {
    workers_.emplace_back();
    if (Status started = StartWorker(worker, WorkerCommand(worker)); !started.ok()) return started;
  }
  return {};
}

// So many programs whose names begin like that have said so.
bool Job::IsListening(const std::string& name, size_t count) {
  return RunUntil(Clock::now() + std::chrono::seconds(10), [&] {
    return static_cast<size_t>(std::ranges::count_if(lines_, [&](const Line& line) {
             return line.program.starts_with(name) && line.text.find("\"listening\"") != std::string::npos;
           })) >= count;
  });
}

Words Job::MemberCommand(size_t worker) const {
  Words words = {ProgramPath("longhaul_faults_bench"),  "member",   options_.member, "--idle-timeout",
                 std::to_string(options_.idle_timeout), "--ledger", LedgerOf(worker)};
  if (options_.sites == 0) {
    Append(&words, {"--join", kServerAddress, "--key", key_file(), "--rank", std::to_string(worker),
                    "--world-size", std::to_string(options_.workers)});
  } else {
    Append(&words, {"--offload", "unix:" + SocketOf(EngineOf(worker)), "--rank",
                    std::to_string(worker % WorkersOfEngine())});
  }
  Append(&words, options_.member_words);
  return words;
}

Words Job::WorkerCommand(size_t worker) const {
  if (!options_.member.empty() && (options_.all_members || worker + 1 == options_.workers))
    return MemberCommand(worker);
  Words words = {ProgramPath("longhaul-worker"),
                 "--join",
                 kServerAddress,
                 "--rank",
                 std::to_string(worker),
                 "--world-size",
                 std::to_string(options_.workers),
                 "--site",
                 WorkerSite(worker),
                 "--progress",
                 "json",
                 "--rounds",
                 std::to_string(options_.rounds),
                 "--optimizer",
                 "sgd:lr=0.05",
                 "--idle-timeout",
                 std::to_string(options_.idle_timeout)};
  Append(&words, protection_->ClientFlags());
  Append(&words, options_.worker_words);
  if (worker < options_.worker_words_of.size()) Append(&words, options_.worker_words_of[worker]);
  return words;
}

Status Job::StartWorker(size_t worker, const Words& words) {
  const std::string name = "worker" + std::to_string(worker);
  const std::string log = scratch_.File(name + "." + std::to_string(starts_++) + ".log");
  auto child = StartIn(wan_.get(), WorkerSite(worker), name, words, log);
  if (!child.ok()) return child.status();
  if (workers_[worker]) others_.push_back(*std::exchange(workers_[worker], std::nullopt));
  workers_[worker].emplace(std::move(*child));
  logs_.push_back({name, log});
  return {};
}

void Job::StartWorkerAgain(size_t worker, const Words& more) {
  Words words = WorkerCommand(worker);
  Append(&words, more);
  if (Status started = StartWorker(worker, words); !started.ok()) OnLine("bench", started.ToString());
}

void Job::StartServerAgain(size_t server) {
  Words words = {ProgramPath("longhaul-server"), "--listen",
                 std::string(kServerHost) + ":" + std::to_string(kServerPort + server), "--progress", "json"};
  if (server == 0) {
    Append(&words, {"--workers", std::to_string(options_.sites == 0 ? options_.workers : options_.sites),
                    "--idle-timeout", std::to_string(options_.idle_timeout)});
    if (options_.servers > 1) Append(&words, {"--servers", std::to_string(options_.servers)});
    Append(&words, options_.job_words);
  } else {
    Append(&words, {"--first-server", kServerAddress});
  }
  Append(&words, protection_->ServerFlags());
  if (options_.keeps_state) Append(&words, {"--checkpoint-dir", checkpoints(server)});
  Append(&words, options_.server_words);
  const std::string name = server == 0 ? "server" : "server" + std::to_string(server + 1);
  const std::string log = scratch_.File(name + "." + std::to_string(starts_++) + ".log");
  auto child = StartIn(wan_.get(), kServerSite, name, words, log);
  if (!child.ok()) return OnLine("bench", child.status().ToString());
  if (servers_[server]) others_.push_back(*std::exchange(servers_[server], std::nullopt));
  servers_[server].emplace(std::move(*child));
  logs_.push_back({name, log});
}

void Job::StartEngineAgain(size_t engine) {
  const size_t site = engine / kEnginesOfSite, node = engine % kEnginesOfSite;
  std::string peers;
  for (size_t peer = 0; peer < kEnginesOfSite; ++peer)
    peers +=
        (peer == 0 ? "" : ",") + std::to_string(peer) + "=127.0.0.1:" + std::to_string(kEnginePort + peer);
  const std::string name = "engine" + std::to_string(engine), of_site = "W" + std::to_string(site);
  Words words = {ProgramPath("longhaul-offload"),
                 "--listen",
                 SocketOf(engine),
                 "--nodes",
                 std::to_string(kEnginesOfSite),
                 "--node",
                 std::to_string(node),
                 "--peers",
                 peers,
                 "--ranks-per-node",
                 std::to_string(WorkersOfEngine()),
                 "--server",
                 kServerAddress,
                 "--rank",
                 std::to_string(site),
                 "--world-size",
                 std::to_string(options_.sites),
                 "--site",
                 of_site,
                 "--idle-timeout",
                 std::to_string(options_.idle_timeout),
                 "--reconnect-timeout",
                 "120",
                 "--progress",
                 "json"};
  Append(&words, protection_->ClientFlags());
  const std::string log = scratch_.File(name + "." + std::to_string(starts_++) + ".log");
  auto child = StartIn(wan_.get(), of_site, name, words, log);
  if (!child.ok()) return OnLine("bench", child.status().ToString());
  if (engines_[engine]) others_.push_back(*std::exchange(engines_[engine], std::nullopt));
  engines_[engine].emplace(std::move(*child));
  logs_.push_back({name, log});
}

void Job::ChangeAddress(size_t worker) {
  const std::string site = WorkerSite(worker);
  const std::string network = "10.77." + std::to_string(worker + 2) + ".";
  int& last = addresses_[worker];
  const std::string before = network + std::to_string(last) + "/24";
  last = last % 200 + 1;
  RunInSite(site, {"ip", "addr", "del", before, "dev", "wan0"});
  RunInSite(site, {"ip", "addr", "add", network + std::to_string(last) + "/24", "dev", "wan0"});
  RunInSite(site, {"ip", "route", "replace", "10.77.0.0/16", "dev", "wan0"});
}

void Job::StartStranger(size_t site, const std::string& name, const Words& words) {
  const std::string log = scratch_.File("stranger" + std::to_string(starts_++) + ".log");
  auto child = StartIn(wan_.get(), WorkerSite(site), "stranger", words, log);
  if (!child.ok()) return OnLine("bench", child.status().ToString());
  others_.push_back(std::move(*child));
  logs_.push_back({name, log});
}

void Job::RunInSite(const std::string& site, const Words& words) {
  const auto code = wan_->RunInSite(site, words);
  if (!code.ok() || *code != 0) OnLine("bench", words.front() + " failed in " + site);
}

void Job::Set(const std::string& from, const std::string& to, const std::string& words) {
  const auto link = wan::ParseLinkOptions(words);
  const Status set = link.ok() ? wan_->SetLink(from, to, *link) : link.status();
  if (!set.ok()) OnLine("bench", set.ToString());
}

void Job::SetUp(size_t worker, const std::string& words) { Set(WorkerSite(worker), kServerSite, words); }
void Job::SetDown(size_t worker, const std::string& words) { Set(kServerSite, WorkerSite(worker), words); }

void Job::SetAllLinks(const std::string& words) {
  const size_t step = options_.sites == 0 ? 1 : options_.workers / options_.sites;
  for (size_t worker = 0; worker < options_.workers; worker += step) SetLink(worker, words);
}

void Job::OnLine(const std::string& program, const std::string& text) {
  const auto now = Clock::now();
  if (program == "worker0" && text.find("\"event\":\"round\"") != std::string::npos) {
    rounds_.push_back(now);
    return;
  }
  // What the others say of every round tells nothing here.
  if (text.find("\"event\":\"round\"") != std::string::npos || lines_.size() >= kMaxLines) return;
  lines_.push_back({now, program, text});
}

void Job::ReadLogs() {
  for (Log& log : logs_) {
    std::ifstream file(log.file);
    file.seekg(static_cast<std::streamoff>(log.read));
    for (std::string line; std::getline(file, line) && !file.eof();) {
      log.read += line.size() + 1;
      OnLine(log.program, line);
    }
  }
}

void Job::TakeIn() {
  std::vector<pollfd> polls;
  std::vector<cli::ChildProcess*> children;
  for (auto& server : servers_) {
    if (server && read_server_) children.push_back(&*server);
  }
  for (auto& worker : workers_) {
    if (worker) children.push_back(&*worker);
  }
  for (auto& engine : engines_) {
    if (engine) children.push_back(&*engine);
  }
  for (cli::ChildProcess& other : others_) children.push_back(&other);
  for (const cli::ChildProcess* child : children) {
    if (child->output() >= 0) polls.push_back({child->output(), POLLIN, 0});
  }
  ::poll(polls.data(), polls.size(), 20);
  for (cli::ChildProcess* child : children) {
    child->ReadLines([&](const std::string& line) { OnLine(child->name(), line); });
    child->Poll();
  }
  ReadLogs();
}

bool Job::AllWorkersEnded() {
  for (auto& worker : workers_) {
    if (!worker->Poll()) return false;
  }
  return true;
}

bool Job::AllEnded() {
  return std::ranges::all_of(servers_, [](auto& server) { return server->Poll(); }) && AllWorkersEnded();
}

std::vector<int> Job::WorkerExitCodes() {
  std::vector<int> codes;
  for (auto& worker : workers_) codes.push_back(worker->Poll() ? worker->exit_code() : -1);
  return codes;
}

std::string Job::ExitCodes() {
  std::string text;
  const auto add = [&](const std::string& name, cli::ChildProcess& child) {
    if (child.Poll()) text += (text.empty() ? "" : ", ") + name + " " + std::to_string(child.exit_code());
  };
  for (auto& server : servers_) add(server->name(), *server);
  for (size_t worker = 0; worker < workers_.size(); ++worker)
    add("worker " + std::to_string(worker), *workers_[worker]);
  return text.empty() ? "all run" : text;
}

}  // namespace longhaul::bench::faults
