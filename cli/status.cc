#include "cli/status.h"

#include <cmath>
#include <cstdio>
#include <memory>
#include <random>
#include <utility>

#include "cli/printable_json.h"
#include "transport/keys/load_security.h"
#include "transport/udp/clock.h"
#include "transport/udp/event_loop.h"
#include "transport/udp/resolve.h"
#include "worker/status_core.h"

namespace longhaul::cli {
namespace {

int Fail(const std::string& what, int code) {
  std::fprintf(stderr, "longhaul status: %s\n", what.c_str());
  return code;
}

uint64_t Entropy() {
  std::random_device device;
  return uint64_t{device()} << 32 ^ device();
}

int Print(const std::string& answer) {
  const auto text = PrintableJson(answer);
  if (!text.ok()) return Fail(text.status().ToString(), kStatusUnreachable);
  const bool written = std::fputs((*text + "\n").c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
  return written ? 0 : Fail("cannot write to standard output", 1);
}

}  // namespace

int RunStatus(const StatusCommandOptions& options) {
  if (!std::isfinite(options.timeout)) return Fail("--timeout must be a number", kStatusUsage);
  if (!options.insecure && options.key_file.empty()) {
    return Fail("which key does the server have? --key FILE, or --insecure when it has none", kStatusUsage);
  }
  const auto security = keys::LoadSecurity(
      {.key_file = options.key_file, .insecure = options.insecure, .role = crypto::Role::kTool});
  if (!security.ok()) return Fail(security.status().ToString(), kStatusUsage);
  const auto server = udp::ResolvePeer(options.join);
  if (!server.ok()) {
    const bool usage = server.status().code() == StatusCode::kInvalidArgument;
    return Fail("--join: " + server.status().message(), usage ? kStatusUsage : kStatusUnreachable);
  }
  auto socket = udp::UdpSocket::Open(udp::UdpSocket::AnyAddressFor(*server));
  if (!socket.ok()) return Fail(socket.status().ToString(), kStatusUnreachable);

  udp::EventLoop* running = nullptr;
  worker::StatusCore core(
      {.timeout = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(options.timeout)),
       .security = security->security.get()},
      Random(Entropy()), [&running] { running->Stop(); });
  auto loop = udp::EventLoop::Create(&core, std::move(*socket), nullptr);
  if (!loop.ok()) return Fail(loop.status().ToString(), kStatusUnreachable);
  running = loop->get();
  core.Ask(udp::Now(), *server);
  (*loop)->Run();
  const auto& outcome = core.outcome();
  if (!outcome) return Fail("ended without an answer", kStatusUnreachable);
  if (!outcome->ok()) return Fail(outcome->status().ToString(), kStatusUnreachable);
  return Print(**outcome);
}

}  // namespace longhaul::cli
