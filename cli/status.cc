#include "cli/status.h"

#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>

#include "base/flags/flag_names.h"
#include "base/units_text.h"
#include "proto/utf8.h"
#include "transport/keys/load_security.h"
#include "transport/udp/clock.h"
#include "transport/udp/event_loop.h"
#include "transport/udp/probe.h"
#include "transport/udp/resolve.h"
#include "worker/client/status_core.h"

namespace longhaul::cli {
namespace {

int Fail(const char* command, const std::string& what, int code) {
  std::fprintf(stderr, "longhaul %s: %s\n", command, what.c_str());
  return code;
}

int Print(const char* command, const std::string& text) {
  const bool written = std::fputs((text + "\n").c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
  return written ? 0 : Fail(command, "cannot write to standard output", 1);
}

// Asks the network what it knows of a server that takes its time, in a thread of its own.
class SlowAnswer {
 public:
  // `said` gets what udp::Probe finds, from that thread; not at all when this ends before.
  SlowAnswer(const Address& server, std::function<void(const std::string&)> said)
      : thread_([server, said = std::move(said)](const std::stop_token& stop) {
          std::mutex mutex;
          std::condition_variable_any never;
          std::unique_lock lock(mutex);
          never.wait_for(lock, stop, kSlow, [] { return false; });
          if (!stop.stop_requested()) said(udp::Probe(server, kProbe));
        }) {}

 private:
  static constexpr Duration kSlow = std::chrono::milliseconds(1200);
  static constexpr Duration kProbe = std::chrono::milliseconds(300);
  std::jthread thread_;
};

// The servers end after the time that the workers have: 10 s at most (HandOverDesk), and half as much for the
// network.
constexpr Duration kServersEnd = std::chrono::seconds(15);

// The server's text, or what is wrong and the exit code for it.
struct Answer {
  int code = 0;
  std::string text;
};

Answer Ask(const StatusCommandOptions& options, worker::StatusOptions ask) {
  if (!std::isfinite(options.timeout)) return {kStatusUsage, "--timeout must be a number"};
  if (!options.insecure && options.key_file.empty())
    return {kStatusUsage, "which key does the server have? --key FILE, or --insecure when it has none"};
  const auto security = keys::LoadSecurity({.key_file = options.key_file,
                                            .insecure = options.insecure,
                                            .role = crypto::Role::kTool,
                                            .expected_server = options.server_name});
  if (!security.ok()) return {kStatusUsage, cli::WithFlagNames(security.status().ToString())};
  const auto server = udp::ResolvePeer(options.join);
  if (!server.ok()) {
    const bool usage = server.status().code() == StatusCode::kInvalidArgument;
    return {usage ? kStatusUsage : kStatusUnreachable, "--join: " + server.status().message()};
  }
  auto socket = udp::UdpSocket::Open(udp::UdpSocket::AnyAddressFor(*server));
  if (!socket.ok()) return {kStatusUnreachable, socket.status().ToString()};

  udp::EventLoop* running = nullptr;
  ask.security = security->security();
  worker::StatusCore core(ask, Random(udp::EntropySeed()), [&running] { running->Stop(); });
  auto loop = udp::EventLoop::Create(&core, std::move(*socket), nullptr);
  if (!loop.ok()) return {kStatusUnreachable, loop.status().ToString()};
  running = loop->get();
  core.Ask(udp::Now(), *server);
  const SlowAnswer slow(*server, [&](const std::string& probe) {
    (void)running->Post([&core, probe] {
      core.NoteProbe(probe);
      if (!core.Hint().empty()) std::fprintf(stderr, "no answer yet: %s\n", core.Hint().c_str());
    });
  });
  (*loop)->Run();
  if (!(*loop)->failure().ok()) return {kStatusUnreachable, (*loop)->failure().ToString()};
  const auto& outcome = core.outcome();
  if (!outcome) return {kStatusUnreachable, "ended without an answer"};
  if (outcome->ok()) return {0, **outcome};
  const bool orders = ask.kick || ask.hand_over;
  const bool refused = orders && outcome->status().code() != StatusCode::kUnavailable;
  return {refused ? kOrderRefused : kStatusUnreachable, cli::WithFlagNames(outcome->status().ToString())};
}

}  // namespace

int RunStatus(const StatusCommandOptions& options) {
  const Answer answer = Ask(options, {.timeout = FromSeconds(options.timeout)});
  if (answer.code != 0) return Fail("status", answer.text, answer.code);
  const auto text = PrintableJson(answer.text);
  return text.ok() ? Print("status", *text) : Fail("status", text.status().ToString(), kStatusUnreachable);
}

int RunKick(const StatusCommandOptions& options, uint32_t rank) {
  const Answer answer = Ask(options, {.timeout = FromSeconds(options.timeout), .kick = rank});
  if (answer.code != 0) return Fail("kick", answer.text, answer.code);
  return Print("kick", "kicked " + wire::Printable(answer.text, wire::kMaxTextBytes));
}

int RunHandOver(const StatusCommandOptions& options) {
  const Duration limit = FromSeconds(options.timeout);
  const Answer answer = Ask(options, {.timeout = limit + kServersEnd, .hand_over = limit});
  if (answer.code != 0) return Fail("hand-over", answer.text, answer.code);
  return Print("hand-over", "handed over " + wire::Printable(answer.text, wire::kMaxTextBytes));
}

using nlohmann::json;

Result<std::string> PrintableJson(std::string_view text) {
  bool too_deep = false;
  // The parser keeps its own stack, dump() recurses and indents by the depth: what is too deep is left out on
  // the way in, and then nothing is printed.
  const auto shallow = [&too_deep](int depth, json::parse_event_t event, const json&) {
    const bool begins =
        event == json::parse_event_t::object_start || event == json::parse_event_t::array_start;
    const bool keep = !begins || depth < kMaxJsonDepth;
    too_deep |= !keep;
    return keep;
  };
  const json value = json::parse(text, shallow, /*allow_exceptions=*/false);
  if (too_deep) {
    return Status(StatusCode::kProtocolViolation,
                  "the answer is nested deeper than " + std::to_string(kMaxJsonDepth) + " levels");
  }
  if (!value.is_object()) return Status(StatusCode::kProtocolViolation, "the answer is no JSON object");
  return value.dump(2, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
}

}  // namespace longhaul::cli
