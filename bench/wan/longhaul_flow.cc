#include "bench/wan/longhaul_flow.h"

#include <signal.h>

#include <algorithm>
#include <optional>
#include <thread>

#include "base/units_text.h"
#include "bench/wan/programs.h"
#include "longhaul/client.h"

namespace longhaul::bench {
namespace {

using nlohmann::json;

std::vector<std::string> FlowArguments(const std::string& json_file, const std::string& control) {
  return {ProgramPath("longhaul"), "bench", "flow", "--join", kServerAddress, "--quiet", "--json", json_file,
          "--rate-controller",     control};
}

}  // namespace

void RunLonghaul(wan::TunWan* wan, const Runner& runner, const Timing& timing, double series,
                 const std::vector<std::string>& more_flags, Outcome* outcome) {
  const Scratch scratch;
  const auto protection = Protection::Make(runner.insecure);
  if (!protection.ok()) {
    outcome->error = protection.status().message();
    return;
  }
  auto server = StartServer(wan, scratch, *protection);
  if (!server.ok()) {
    outcome->error = server.status().message();
    return;
  }
  const auto seconds = [](Duration d) { return std::chrono::duration<double>(d).count(); };
  std::vector<std::string> argv = FlowArguments(scratch.File("flow.json"), runner.control);
  argv.insert(argv.end(), {"--seconds", std::to_string(seconds(timing.length)), "--warmup",
                           std::to_string(seconds(timing.warmup)), "--series", std::to_string(series)});
  for (const auto& more : {protection->ClientFlags(), more_flags})
    argv.insert(argv.end(), more.begin(), more.end());
  const double server_cpu = CpuSeconds(server->pid());
  auto flow = StartIn(wan, "B", "flow", argv, scratch.File("flow.log"));
  if (!flow.ok()) {
    outcome->error = flow.status().message();
    return;
  }
  while (!flow->WaitFor(std::chrono::milliseconds(200))) {
    server->ReadLines([](const std::string&) {});
  }
  const double wall = seconds(timing.length);
  outcome->receiver_cpu = (CpuSeconds(server->pid()) - server_cpu) / wall;
  server->Signal(SIGTERM);
  const auto result = ReadJson(scratch.File("flow.json"));
  if (flow->exit_code() != 0 || !result) {
    outcome->error = LastLine(scratch.File("flow.log"));
    if (outcome->error.empty())
      outcome->error = "longhaul bench flow ended with " + std::to_string(flow->exit_code());
    if (!result) return;
  }
  outcome->details = *result;
  outcome->goodput_mbps = result->value("goodput_mbps", 0.0);
  outcome->sender_cpu = result->value("cpu_seconds", 0.0) / wall;
  outcome->payload_share = result->value("chunk_bytes", 0.0) / (result->value("datagram_bytes", 0.0) + 28);
}

namespace {

// One worker of the incast job, in a thread of its own inside site B: the client library's thread follows it.
Status PushRounds(wan::TunWan* wan, uint32_t rank, const IncastOptions& options, const Protection& protection,
                  size_t elements, std::vector<double>* push_ms) {
  if (Status in = wan->EnterSite("B"); !in.ok()) return in;
  ConnectOptions connect;
  connect.servers = {kServerAddress};
  connect.rank = rank;
  connect.world_size = static_cast<uint32_t>(options.workers);
  connect.key_file = protection.key_file();
  connect.insecure = options.insecure;
  auto client = Client::Connect(connect);
  if (!client.ok()) return client.status();
  TensorOptions tensor_options;
  tensor_options.count = elements;
  const auto tensor = client->Declare("gradient", tensor_options);
  if (!tensor.ok()) return tensor.status();
  std::vector<float> gradient(elements);
  for (size_t i = 0; i < elements; ++i) {
    gradient[i] = static_cast<float>(i % 1013 + rank + 1) * 1e-3f;
  }
  for (int round = 0; round < options.rounds; ++round) {
    if (Status s = client->Barrier("round " + std::to_string(round)); !s.ok()) return s;
    const auto begin = std::chrono::steady_clock::now();
    if (Status s = client->Push(*tensor, gradient).Wait(); !s.ok()) return s;
    const auto took = std::chrono::steady_clock::now() - begin;
    push_ms->push_back(std::chrono::duration<double, std::milli>(took).count());
  }
  return client->Leave();
}

}  // namespace

void RunIncast(wan::TunWan* wan, const IncastOptions& options, Outcome* outcome) {
  const Scratch scratch;
  const auto bytes = ParseBytes(options.bytes);
  if (!bytes.ok()) {
    outcome->error = bytes.status().message();
    return;
  }
  std::vector<std::string> flags = {"--workers", std::to_string(options.workers), "--high-share", "1"};
  flags.insert(flags.end(), options.server_flags.begin(), options.server_flags.end());
  const auto protection = Protection::Make(options.insecure);
  if (!protection.ok()) {
    outcome->error = protection.status().message();
    return;
  }
  auto server = StartServer(wan, scratch, *protection, flags);
  if (!server.ok()) {
    outcome->error = server.status().message();
    return;
  }
  const auto elements = static_cast<size_t>(bytes->value() / 4);
  const auto workers = static_cast<size_t>(options.workers);
  std::vector<std::vector<double>> push_ms(workers);
  std::vector<Status> ends(workers);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < workers; ++rank) {
    threads.emplace_back([&, rank] {
      ends[rank] =
          PushRounds(wan, static_cast<uint32_t>(rank), options, *protection, elements, &push_ms[rank]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  server->Signal(SIGTERM);
  for (const Status& end : ends) {
    if (!end.ok()) outcome->error = end.ToString();
  }
  if (!outcome->error.empty()) return;
  double slowest_sum = 0;
  json rounds = json::array();
  for (size_t round = 0; round < static_cast<size_t>(options.rounds); ++round) {
    json of_round = json::array();
    double slowest = 0;
    for (const auto& of_worker : push_ms) {
      of_round.push_back(of_worker[round]);
      slowest = std::max(slowest, of_worker[round]);
    }
    slowest_sum += slowest;
    rounds.push_back(of_round);
  }
  const double all = static_cast<double>(elements * 4 * workers) * options.rounds;
  outcome->goodput_mbps = all * 8e-3 / slowest_sum;
  outcome->details = {{"push_ms", rounds}};
}

}  // namespace longhaul::bench
