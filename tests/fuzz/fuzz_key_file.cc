// Key files from bytes, and everything that is made of what can be read: an endpoint's security, its cookies
// and tokens, both sides of a handshake. Files come raw, or as changes of good ones; some of them by the
// reader of files and all that a daemon's options decide (transport/keys).
//
// Holds: a file that is refused is refused in plain words, which contain nothing of it; what a pre-shared
// key's file says is what PrintPskKey writes; a shared key lets in every peer with it, and a certificate no
// peer of its own role. A file that others may use is refused, whatever is in it; else the file decides.
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <string>
#include <utility>

#include "tests/fuzz/key_files.h"
#include "transport/crypto/credentials.h"
#include "transport/crypto/tls_security.h"
#include "transport/keys/load_security.h"

using namespace longhaul;  // NOLINT

namespace {

using crypto::Credentials;
using crypto::TlsSecurity;
using transport::HandshakeCrypto;

// Words for people, without the file's own.
void CheckRefusal(const Status& status, std::string_view secret) {
  const std::string& message = status.message();
  FUZZ_REQUIRE(!message.empty() && message.size() < 400);
  for (const char c : message) FUZZ_REQUIRE(std::isprint(static_cast<unsigned char>(c)));
  constexpr size_t kLeak = 12;
  for (size_t at = 0; at + kLeak <= secret.size(); ++at) {
    FUZZ_REQUIRE(message.find(secret.substr(at, kLeak)) == std::string::npos);
  }
}

std::string_view SecretOf(std::string_view file) {
  if (const size_t psk = file.find("psk = "); psk != std::string_view::npos) return file.substr(psk + 6, 64);
  const size_t begin = file.find("PRIVATE KEY-----\n");
  return begin == std::string_view::npos ? std::string_view() : file.substr(begin + 17, 64);
}

void Exchange(HandshakeCrypto& client, HandshakeCrypto& server) {
  for (int flights = 0;; ++flights) {
    FUZZ_REQUIRE(flights < 8);
    const auto out = client.TakeData();
    if (!out.empty()) (void)server.HandleData(out);
    const auto back = server.TakeData();
    if (!back.empty()) (void)client.HandleData(back);
    if (out.empty() && back.empty()) return;
  }
}

void Use(TlsSecurity& security, bool psk, bool is_server) {
  const Instant now = Instant::FromNanoseconds(99'000'000'000);
  const Address from = Address::V4(10, 0, 0, 1, 7700);
  const wire::ConnectionId id{17};
  auto cookie = *security.MakeCookie(now, from, id);
  FUZZ_REQUIRE(security.CheckCookie(now, from, id, cookie));
  cookie[5] ^= 1;
  FUZZ_REQUIRE(!security.CheckCookie(now, from, id, cookie));
  FUZZ_REQUIRE(security.ResetToken(id) != security.ResetToken({18}));

  std::vector<uint8_t> header(26, 1), body(100, 2), tag(wire::kTagBytes);
  security.long_protection().Seal(3, 0, header, body, tag);
  FUZZ_REQUIRE(security.long_protection().Open(3, 0, header, body, tag));
  FUZZ_REQUIRE(body == std::vector<uint8_t>(100, 2));

  const auto client = security.NewSession(true), server = security.NewSession(false);
  Exchange(*client, *server);
  if (psk) FUZZ_REQUIRE(client->complete() && server->complete());
  // A server meets others of its job.
  if (!psk && !is_server) FUZZ_REQUIRE(!server->complete());
}

crypto::TlsOptions Options(uint8_t kind) {
  crypto::TlsOptions options;
  options.role = static_cast<crypto::Role>(kind % 3);
  options.wall_clock = [] { return fuzz::kToday; };
  return options;
}

void TryKeyFile(uint8_t kind, std::string_view text, std::string_view secret) {
  Result<Credentials> credentials = crypto::ParseKeyFile(text);
  if (!credentials.ok()) return CheckRefusal(credentials.status(), secret);
  const auto* psk = std::get_if<crypto::PskKey>(&*credentials);
  if (psk != nullptr) {
    const auto printed = crypto::PrintPskKey(*psk);
    const auto again = crypto::ParseKeyFile(printed.text());
    FUZZ_REQUIRE(again.ok() && std::get<crypto::PskKey>(*again).job == psk->job);
    FUZZ_REQUIRE(crypto::PrintPskKey(std::get<crypto::PskKey>(*again)).text() == printed.text());
  }
  const bool shared = psk != nullptr;
  for (const std::string& trust : crypto::TrustsOf(*credentials)) {
    FUZZ_REQUIRE(trust.size() == 16 && (secret.empty() || secret.find(trust) == std::string_view::npos));
  }
  auto security = TlsSecurity::Create(std::move(credentials).value(), Options(kind));
  if (!security.ok()) return CheckRefusal(security.status(), secret);
  Use(**security, shared, Options(kind).role == crypto::Role::kServer);
}

// A file in memory that has these bytes and this mode.
std::string PathOf(std::string_view text, mode_t mode) {
  static const int file = ::memfd_create("key", MFD_CLOEXEC);
  FUZZ_REQUIRE(::ftruncate(file, 0) == 0 && ::fchmod(file, mode) == 0);
  FUZZ_REQUIRE(::pwrite(file, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
  return "/proc/self/fd/" + std::to_string(file);
}

void TryLoad(FuzzInput& in, std::string_view text, std::string_view secret) {
  const mode_t mode = in.U8() < 200 ? 0600 : in.U16() & 0777;
  keys::SecurityChoice choice;
  choice.key_file = PathOf(text, mode);
  choice.insecure = in.U8() > 240;
  choice.role = static_cast<crypto::Role>(in.Below(3));
  choice.cipher = static_cast<Cipher>(in.U8() < 200 ? 0 : in.U8());
  const auto word = [&in] {  // repeated to the user as it was typed
    std::string typed;
    for (const uint8_t byte : in.Bytes(in.Below(20))) typed += static_cast<char>(' ' + byte % 95);
    return typed;
  };
  if (in.U8() > 200) choice.job = word();
  for (uint32_t names = in.U8() > 200 ? in.Below(4) : 0; names > 0; --names) choice.allow.push_back(word());
  const auto loaded = keys::LoadSecurity(choice);
  if (!loaded.ok()) return CheckRefusal(loaded.status(), secret);
  FUZZ_REQUIRE((mode & 0077) == 0 && crypto::ParseKeyFile(text).ok());
  FUZZ_REQUIRE(loaded->security() != nullptr && !loaded->job.empty() && loaded->kind != "insecure");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::KeyFiles& keys = fuzz::AllKeyFiles();
  fuzz::RestartChance(2);
  FuzzInput in(data, size);
  const uint8_t kind = in.U8();
  if (kind >= 0xc0) {  // raw
    const ByteSpan rest = in.Bytes(size);
    TryKeyFile(kind, {reinterpret_cast<const char*>(rest.data()), rest.size()}, {});
    return 0;
  }
  const std::string* const files[] = {&keys.worker, &keys.server, &keys.tool,
                                      &keys.psk,    &keys.ca,     &keys.other_worker};
  const std::string& file = *files[in.Below(std::size(files))];
  std::string text = file;
  if ((kind & 0x40) != 0) {
    fuzz::Damage(in, text);
  } else if (!in.empty()) {
    text = fuzz::DamageBlock(in, file);
  }
  if ((kind & 0x20) != 0) return TryLoad(in, text, SecretOf(file)), 0;
  TryKeyFile(kind, text, SecretOf(file));
  return 0;
}
