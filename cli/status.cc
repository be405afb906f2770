#include "cli/status.h"

#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/flags/flag_names.h"
#include "base/units_text.h"
#include "transport/keys/load_security.h"
#include "transport/udp/clock.h"
#include "transport/udp/event_loop.h"
#include "transport/udp/resolve.h"
#include "worker/client/status_core.h"

namespace longhaul::cli {
namespace {

int FailStatus(const std::string& what, int code) {
  std::fprintf(stderr, "longhaul status: %s\n", what.c_str());
  return code;
}

int Print(const std::string& answer) {
  const auto text = PrintableJson(answer);
  if (!text.ok()) return FailStatus(text.status().ToString(), kStatusUnreachable);
  const bool written = std::fputs((*text + "\n").c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
  return written ? 0 : FailStatus("cannot write to standard output", 1);
}

}  // namespace

int RunStatus(const StatusCommandOptions& options) {
  if (!std::isfinite(options.timeout)) return FailStatus("--timeout must be a number", kStatusUsage);
  if (!options.insecure && options.key_file.empty()) {
    return FailStatus("which key does the server have? --key FILE, or --insecure when it has none",
                      kStatusUsage);
  }
  const auto security = keys::LoadSecurity(
      {.key_file = options.key_file, .insecure = options.insecure, .role = crypto::Role::kTool});
  if (!security.ok()) return FailStatus(cli::WithFlagNames(security.status().ToString()), kStatusUsage);
  const auto server = udp::ResolvePeer(options.join);
  if (!server.ok()) {
    const bool usage = server.status().code() == StatusCode::kInvalidArgument;
    return FailStatus("--join: " + server.status().message(), usage ? kStatusUsage : kStatusUnreachable);
  }
  auto socket = udp::UdpSocket::Open(udp::UdpSocket::AnyAddressFor(*server));
  if (!socket.ok()) return FailStatus(socket.status().ToString(), kStatusUnreachable);

  udp::EventLoop* running = nullptr;
  worker::StatusCore core({.timeout = FromSeconds(options.timeout), .security = security->security.get()},
                          Random(udp::EntropySeed()), [&running] { running->Stop(); });
  auto loop = udp::EventLoop::Create(&core, std::move(*socket), nullptr);
  if (!loop.ok()) return FailStatus(loop.status().ToString(), kStatusUnreachable);
  running = loop->get();
  core.Ask(udp::Now(), *server);
  (*loop)->Run();
  const auto& outcome = core.outcome();
  if (!outcome) return FailStatus("ended without an answer", kStatusUnreachable);
  if (!outcome->ok()) return FailStatus(outcome->status().ToString(), kStatusUnreachable);
  return Print(**outcome);
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
