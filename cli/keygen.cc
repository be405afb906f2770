#include "cli/keygen.h"

#include <chrono>
#include <cstdio>
#include <optional>

#include "transport/crypto/keygen.h"
#include "transport/keys/key_file.h"

namespace longhaul::cli {
namespace {

constexpr uint32_t kDays = 365;
constexpr uint32_t kAuthorityDays = 3650;

int Fail(const std::string& what, int code) {
  std::fprintf(stderr, "longhaul keygen: %s\n", what.c_str());
  return code;
}

// What does not go together is refused before anything is made.
Status Check(const KeygenOptions& o) {
  const auto invalid = [](std::string text) { return Status(StatusCode::kInvalidArgument, std::move(text)); };
  if (o.authority && !o.from.empty()) return invalid("--ca makes an authority, --from uses one: say one of them");
  if (!o.from.empty() && o.name.empty()) {
    return invalid("--from needs --name: whose certificate it is, for example the site");
  }
  if (o.from.empty() && !o.name.empty()) return invalid("--name is for certificates, which need --from FILE");
  return {};
}

struct Made {
  crypto::SecretBytes text;
  std::string what;
  std::string next;  // what to do with it
};

crypto::Validity From(int64_t now, uint32_t days) {
  // An hour back: clocks of the machines that will check it differ.
  return {.not_before = now - 3600, .not_after = now + int64_t{days} * 86400};
}

Result<Made> MakeAuthority(const KeygenOptions& o, int64_t now) {
  const uint32_t days = o.days != 0 ? o.days : kAuthorityDays;
  auto text = crypto::NewCa("longhaul", From(now, days));
  if (!text.ok()) return text.status();
  return Made{*std::move(text), "authority, " + std::to_string(days) + " days",
              "Keep it off the machines that train. Certificates: longhaul keygen --from " + o.out +
                  " --role server --name NAME --job JOB --out FILE"};
}

Result<Made> MakeCertificate(const KeygenOptions& o, int64_t now) {
  const uint32_t days = o.days != 0 ? o.days : kDays;
  const std::optional<crypto::Role> role = crypto::ParseRole(o.role);
  if (!role) return Status(StatusCode::kInvalidArgument, "--role is server, worker or tool");
  const auto authority = keys::ReadKeyFile(o.from);
  if (!authority.ok()) return authority.status();
  auto text = crypto::IssueCertificate(authority->text(), o.job, *role, o.name, From(now, days));
  if (!text.ok()) return Status(text.status().code(), o.from + ": " + text.status().message());
  const char* const program = *role == crypto::Role::kServer   ? "longhaul-server"
                              : *role == crypto::Role::kWorker ? "longhaul-worker"
                                                               : "longhaul bench";
  return Made{*std::move(text),
              "certificate of " + o.role + " " + o.name + " for job " + o.job + ", " + std::to_string(days) +
                  " days",
              "It is for one machine: " + std::string(program) + " --key " + o.out};
}

Result<Made> MakeShared(const KeygenOptions& o) {
  auto text = crypto::NewPsk(o.job);
  if (!text.ok()) return text.status();
  return Made{*std::move(text), "shared key of job " + o.job,
              "Give it to the server and to every worker, by a way that you trust: --key " + o.out};
}

Result<Made> Make(const KeygenOptions& o) {
  const int64_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  if (o.authority) return MakeAuthority(o, now);
  return o.from.empty() ? MakeShared(o) : MakeCertificate(o, now);
}

}  // namespace

int RunKeygen(const KeygenOptions& options) {
  if (Status fine = Check(options); !fine.ok()) return Fail(fine.message(), 2);
  Result<Made> made = Make(options);
  if (!made.ok()) return Fail(made.status().message(), 2);
  if (Status written = keys::WriteKeyFile(options.out, made->text.text()); !written.ok()) {
    return Fail(written.message(), written.code() == StatusCode::kAlreadyExists ? 2 : 1);
  }
  std::printf("%s: %s, mode 0600\n%s\n", options.out.c_str(), made->what.c_str(), made->next.c_str());
  return 0;
}

}  // namespace longhaul::cli
