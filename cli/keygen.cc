#include "cli/keygen.h"

#include <chrono>
#include <cstdio>

#include "transport/crypto/credentials.h"
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
  keys::SecretText text;
  std::string what;
  std::string next;  // what to do with it
};

Result<Made> Make(const KeygenOptions& o) {
  const int64_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  const uint32_t days = o.days != 0 ? o.days : o.authority ? kAuthorityDays : kDays;
  Made made;
  Result<std::string> text = Status(StatusCode::kInternal, "");
  if (o.authority) {
    text = crypto::NewAuthority("longhaul", now, days);
    made.what = "authority, " + std::to_string(days) + " days";
    made.next = "Keep it off the machines that train. Certificates: longhaul keygen --from " + o.out +
                " --role server --name NAME --job JOB --out FILE";
  } else if (!o.from.empty()) {
    Result<keys::SecretText> authority = keys::ReadKeyFile(o.from);
    if (!authority.ok()) return authority.status();
    text = crypto::IssueCertificate(authority->view(), {.role = o.role, .job = o.job, .name = o.name}, now, days);
    if (!text.ok()) return Status(text.status().code(), o.from + ": " + text.status().message());
    made.what = "certificate of " + o.role + " " + o.name + " for job " + o.job + ", " + std::to_string(days) + " days";
    made.next = "It is for one machine: longhaul-" + std::string(o.role == "server" ? "server" : "worker") +
                " --key " + o.out;
  } else {
    text = crypto::NewPsk(o.job);
    made.what = "shared key of job " + o.job;
    made.next = "Give it to the server and to every worker, by a way that you trust: --key " + o.out;
  }
  if (!text.ok()) return text.status();
  made.text = keys::SecretText(std::move(*text));
  return made;
}

}  // namespace

int RunKeygen(const KeygenOptions& options) {
  if (Status fine = Check(options); !fine.ok()) return Fail(fine.message(), 2);
  Result<Made> made = Make(options);
  if (!made.ok()) return Fail(made.status().message(), 2);
  if (Status written = keys::WriteKeyFile(options.out, made->text.view()); !written.ok()) {
    return Fail(written.message(), written.code() == StatusCode::kAlreadyExists ? 2 : 1);
  }
  std::printf("%s: %s, mode 0600\n%s\n", options.out.c_str(), made->what.c_str(), made->next.c_str());
  return 0;
}

}  // namespace longhaul::cli
