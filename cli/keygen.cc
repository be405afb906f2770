#include "cli/keygen.h"

#include <chrono>
#include <cstdio>
#include <ctime>
#include <optional>

#include "transport/crypto/credentials.h"
#include "transport/crypto/keygen.h"
#include "transport/keys/key_file.h"

namespace longhaul::cli {
namespace {

constexpr uint32_t kDays = 365;
constexpr uint32_t kAuthorityDays = 3650;

int FailKeygen(const std::string& what, int code) {
  std::fprintf(stderr, "longhaul keygen: %s\n", what.c_str());
  return code;
}

// What does not go together is refused before anything is made.
Status Check(const KeygenOptions& o) {
  const auto invalid = [](std::string text) { return Status(StatusCode::kInvalidArgument, std::move(text)); };
  if (o.authority && !o.from.empty())
    return invalid("--ca makes an authority, --from uses one: say one of them");
  if (!o.from.empty() && o.name.empty()) {
    return invalid("--from needs --name: whose certificate it is, for example the site");
  }
  if (o.from.empty() && !o.name.empty()) return invalid("--name is for certificates, which need --from FILE");
  if (o.from.empty() && !o.role.empty()) return invalid("--role is for certificates, which need --from FILE");
  if (!o.ranks.empty() && (o.from.empty() || (!o.role.empty() && o.role != "worker"))) {
    return invalid("--ranks is for certificates of workers, which need --from FILE");
  }
  if (!o.ranks.empty() && !RankRange::Parse(o.ranks)) {
    return invalid("--ranks is a rank or a range of them, like 3 or 1-3, of 0 to 1023");
  }
  if (o.authority && !o.job.empty()) {
    return invalid("--job and --ca: an authority is of all jobs, each of its certificates of one");
  }
  if (!o.authority && o.from.empty() && o.days != 0) {
    return invalid("--days is for --ca and --from: a shared key does not end");
  }
  return {};
}

std::string JobOf(const KeygenOptions& o) { return o.job.empty() ? "default" : o.job; }

struct Made {
  crypto::SecretBytes text;
  std::string what;
  std::string next;  // what to do with it
};

crypto::Validity From(int64_t now, uint32_t days) {
  // An hour back: clocks of the machines that will check it differ.
  return {.not_before = now - 3600, .not_after = now + int64_t{days} * 86400};
}

std::string Date(int64_t seconds) {
  const std::time_t time = seconds;
  std::tm utc{};
  char text[40] = "";
  if (::gmtime_r(&time, &utc) == nullptr ||
      std::strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", &utc) == 0) {
    return "?";
  }
  return text;
}

// Of a certificate that is valid from now on.
Result<crypto::Validity> Within(const crypto::Validity& authority, int64_t now, uint32_t days) {
  const auto invalid = [](std::string text) { return Status(StatusCode::kInvalidArgument, std::move(text)); };
  if (now > authority.not_after) {
    return invalid("the authority ended at " + Date(authority.not_after) +
                   ": make a new one, and with it new certificates");
  }
  if (now < authority.not_before) {
    return invalid("the authority begins at " + Date(authority.not_before) +
                   ": is this machine's clock right?");
  }
  crypto::Validity validity = From(now, days != 0 ? days : kDays);
  if (validity.not_after <= authority.not_after) return validity;
  if (days != 0) {
    return invalid("--days " + std::to_string(days) + " is beyond the authority's end, " +
                   Date(authority.not_after) + ": at most " +
                   std::to_string((authority.not_after - now) / 86400));
  }
  validity.not_after = authority.not_after;
  return validity;
}

Result<Made> MakeAuthority(const KeygenOptions& o, int64_t now) {
  const uint32_t days = o.days != 0 ? o.days : kAuthorityDays;
  const crypto::Validity validity = From(now, days);
  auto text = crypto::NewCa("longhaul", validity);
  if (!text.ok()) return text.status();
  return Made{*std::move(text), "authority until " + Date(validity.not_after),
              "Keep it off the machines that train. Certificates: longhaul keygen --from " + o.out +
                  " --role server --name NAME --job JOB --out FILE"};
}

Result<Made> MakeCertificate(const KeygenOptions& o, int64_t now) {
  const std::string role_name = o.role.empty() ? "worker" : o.role;
  const std::optional<crypto::Role> role = crypto::ParseRole(role_name);
  if (!role) return Status(StatusCode::kInvalidArgument, "--role is server, worker or tool");
  const auto authority = keys::ReadKeyFile(o.from);
  if (!authority.ok()) return authority.status();
  const auto of_authority = [&](const Status& why) {
    return Status(why.code(), o.from + ": " + why.message());
  };
  const auto ca = crypto::CaValidity(authority->text());
  if (!ca.ok()) return of_authority(ca.status());
  const auto validity = Within(*ca, now, o.days);
  if (!validity.ok()) return of_authority(validity.status());
  auto text = crypto::IssueCertificate(authority->text(), JobOf(o), *role, o.name, *validity,
                                       RankRange::Parse(o.ranks));
  if (!text.ok()) return of_authority(text.status());
  const char* const program = *role == crypto::Role::kServer   ? "longhaul-server"
                              : *role == crypto::Role::kWorker ? "longhaul-worker"
                                                               : "longhaul status";
  return Made{*std::move(text),
              "certificate of " + role_name + " " + o.name +
                  (o.ranks.empty() ? "" : ", ranks " + o.ranks + ",") + " for job " + JobOf(o) + " until " +
                  Date(validity->not_after),
              "It is for one machine: " + std::string(program) + " --key " + o.out};
}

Result<Made> MakeShared(const KeygenOptions& o) {
  auto text = crypto::NewPsk(JobOf(o));
  if (!text.ok()) return text.status();
  const auto id = crypto::TrustsOf(crypto::ParseKeyFile(text->text()).value()).front();
  return Made{*std::move(text), "shared key " + id + " of job " + JobOf(o),
              "Give it to the server and to every worker, by a way that you trust: --key " + o.out};
}

Result<Made> Make(const KeygenOptions& o) {
  const int64_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  if (o.authority) return MakeAuthority(o, now);
  return o.from.empty() ? MakeShared(o) : MakeCertificate(o, now);
}

}  // namespace

int RunKeygen(const KeygenOptions& options) {
  if (Status fine = Check(options); !fine.ok()) return FailKeygen(fine.message(), 2);
  Result<Made> made = Make(options);
  if (!made.ok()) return FailKeygen(made.status().message(), 2);
  if (Status written = keys::WriteKeyFile(options.out, made->text.text()); !written.ok()) {
    return FailKeygen(written.message(), written.code() == StatusCode::kAlreadyExists ? 2 : 1);
  }
  std::printf("%s: %s, mode 0600\n%s\n", options.out.c_str(), made->what.c_str(), made->next.c_str());
  return 0;
}

}  // namespace longhaul::cli
