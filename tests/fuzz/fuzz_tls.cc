// Two real TLS sessions, with keys that fit each other or do not, and an attacker on the path that changes,
// drops, repeats and invents bytes of both directions; sometimes one side's own certificate is damaged too.
//
// Holds: only who has the right key is ever let in, and under its true name; the server is never
// complete without a client that has accepted it; who has failed stays so; left alone, those who may become
// complete do, with keys that only the two of them agree on; a session sends and keeps little, whatever it is
// told.
#include <sanitizer/allocator_interface.h>

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "tests/fuzz/key_files.h"
#include "transport/crypto/credentials.h"
#include "transport/crypto/tls_security.h"

using namespace longhaul;  // NOLINT

namespace {

using crypto::AeadSuite;
using crypto::TlsSecurity;
using transport::HandshakeCrypto;
using transport::PeerIdentity;

using Bytes = std::vector<uint8_t>;

constexpr size_t kMaxSent = 16 << 10;
constexpr size_t kMaxOnPath = 64 << 10;
// 64 KiB of the peer's bytes at most, what TLS makes of them, and its own objects.
constexpr size_t kMaxMemory = 2 << 20;

std::unique_ptr<TlsSecurity> Make(const std::string& file, crypto::Role role,
                                  std::vector<AeadSuite> suites = {}) {
  auto credentials = crypto::ParseKeyFile(file);
  if (!credentials.ok()) return nullptr;
  crypto::TlsOptions options;
  options.role = role;
  options.wall_clock = [] { return fuzz::kToday; };
  if (role == crypto::Role::kServer) options.allow = AllowList::Parse({"fra", "tool/ops"}).value();
  if (!suites.empty()) options.suites = std::move(suites);
  auto security = TlsSecurity::Create(std::move(credentials).value(), std::move(options));
  return security.ok() ? std::move(security).value() : nullptr;
}

// Who meets whom, and who of the two may become complete: a client is, before the server has judged it.
struct Meeting {
  std::unique_ptr<TlsSecurity> client, server;
  bool client_may = false, server_may = false;
  PeerIdentity seen_by_client = {}, seen_by_server = {};
};

const std::vector<Meeting>& AllMeetings() {
  static const std::vector<Meeting> all = [] {
    using crypto::Role;
    const fuzz::KeyFiles& f = fuzz::AllKeyFiles();
    const PeerIdentity shared = {PeerIdentity::Kind::kPsk, "job", "", ""};
    const PeerIdentity ams = {PeerIdentity::Kind::kCertificate, "job", "server", "ams"};
    const PeerIdentity fra = {PeerIdentity::Kind::kCertificate, "job", "worker", "fra"};
    const PeerIdentity ops = {PeerIdentity::Kind::kCertificate, "job", "tool", "ops"};
    const auto worker = [](const std::string& file, std::vector<AeadSuite> suites = {}) {
      return Make(file, Role::kWorker, std::move(suites));
    };
    const auto server = [](const std::string& file, std::vector<AeadSuite> suites = {}) {
      return Make(file, Role::kServer, std::move(suites));
    };
    std::vector<Meeting> m;
    m.push_back({worker(f.psk), server(f.psk), true, true, shared, shared});
    m.push_back({worker(f.worker), server(f.server), true, true, ams, fra});
    m.push_back({Make(f.tool, Role::kTool), server(f.server), true, true, ams, ops});
    m.push_back({worker(f.psk, {AeadSuite::kAes256Gcm}), server(f.psk), true, true, shared, shared});
    m.push_back({worker(f.worker, {AeadSuite::kChaCha20Poly1305}), server(f.server), true, true, ams, fra});
    m.push_back({Make(f.server, Role::kServer), server(f.server), true, true, ams, ams});  // two of one job
    // Only the server has a reason to refuse.
    m.push_back({worker(f.late_worker), server(f.server), true, false, ams, {}});
    m.push_back({worker(f.banned), server(f.server), true, false, ams, {}});
    // Neither side may become complete.
    m.push_back({worker(f.other_psk), server(f.psk)});
    m.push_back({worker(f.pears_psk), server(f.psk)});
    m.push_back({worker(f.other_worker), server(f.server)});
    m.push_back({worker(f.worker), server(f.other_server)});
    m.push_back({worker(f.worker), server(f.late_server)});
    m.push_back({worker(f.pears_worker), server(f.server)});
    m.push_back({worker(f.worker), worker(f.worker)});  // a worker that plays the server
    m.push_back({worker(f.psk), server(f.server)});
    m.push_back({worker(f.worker), server(f.psk)});
    m.push_back({worker(f.psk, {AeadSuite::kAes256Gcm}), server(f.psk, {AeadSuite::kChaCha20Poly1305})});
    for (const Meeting& meeting : m) FUZZ_REQUIRE(meeting.client != nullptr && meeting.server != nullptr);
    return m;
  }();
  return all;
}

class Path {
 public:
  Path(TlsSecurity& client, TlsSecurity& server, const Meeting& rules) : rules_(rules) {
    sides_[0].session = client.NewSession(true);
    sides_[1].session = server.NewSession(false);
    TakeAll();
  }

  void Step(FuzzInput& in) {
    const uint8_t op = in.U8();
    const size_t to = op & 1;
    Side& side = sides_[to];
    switch (op >> 1 & 7) {
      case 0:
      case 1:
        Deliver(to, side.incoming.size());
        break;
      case 2:
        Deliver(to, in.U16() % (side.incoming.size() + 1));
        break;
      case 3:
        fuzz::Damage(in, side.incoming);
        touched_ = true;
        break;
      case 4:
        Insert(side, Record(in.U8(), in.Bytes(in.U8())));
        break;
      case 5: {  // a message of the handshake, in a record of its own
        Bytes message = {in.U8(), 0, 0, 0};
        const ByteSpan body = in.Bytes(in.U8());
        message[3] = static_cast<uint8_t>(body.size());
        message.insert(message.end(), body.begin(), body.end());
        Insert(side, Record(22, message));
        break;
      }
      case 6: {  // something that was sent before, by either of them
        const Bytes& sent = sides_[in.Below(2)].sent;
        const size_t at = in.U16() % (sent.size() + 1);
        const size_t size = std::min<size_t>(in.U16(), sent.size() - at);
        Insert(side, ByteSpan(sent).subspan(at, size));
        break;
      }
      default:
        Insert(side, in.Bytes(in.U8()));
    }
    // Damage repeats parts of what is there; who damages has touched it.
    if (side.incoming.size() > kMaxOnPath) side.incoming.resize(kMaxOnPath);
  }

  // The path leaves them alone.
  void Finish(ByteSpan context, bool same_context) {
    for (int rounds = 0; !sides_[0].incoming.empty() || !sides_[1].incoming.empty(); ++rounds) {
      FUZZ_REQUIRE(rounds < 100);
      for (size_t to = 0; to < 2; ++to) Deliver(to, sides_[to].incoming.size());
    }
    const bool client = sides_[0].session->complete(), server = sides_[1].session->complete();
    if (!touched_) FUZZ_REQUIRE(server == rules_.server_may);
    if (!touched_ && rules_.server_may) FUZZ_REQUIRE(client);
    if (client && server) CompareKeys(context, same_context);
  }

 private:
  struct Side {
    std::unique_ptr<HandshakeCrypto> session;
    Bytes incoming;  // on its way to this side
    Bytes sent;
    Status failure;
    bool was_complete = false;
  };

  static Bytes Record(uint8_t type, ByteSpan body) {
    Bytes record = {type, 3, 3, static_cast<uint8_t>(body.size() >> 8), static_cast<uint8_t>(body.size())};
    record.insert(record.end(), body.begin(), body.end());
    return record;
  }

  void Insert(Side& side, ByteSpan bytes) {
    side.incoming.insert(side.incoming.begin(), bytes.begin(), bytes.end());
    touched_ = touched_ || !bytes.empty();
  }

  void Deliver(size_t to, size_t size) {
    Side& side = sides_[to];
    const Bytes bytes(side.incoming.begin(), side.incoming.begin() + static_cast<ptrdiff_t>(size));
    side.incoming.erase(side.incoming.begin(), side.incoming.begin() + static_cast<ptrdiff_t>(size));
    const Status status = side.session->HandleData(bytes);
    FUZZ_REQUIRE(side.failure.ok() || status == side.failure);
    side.failure = status;
    TakeAll();
    Check();
  }

  void TakeAll() {
    for (size_t from = 0; from < 2; ++from) {
      const Bytes out = sides_[from].session->TakeData();
      Bytes& sent = sides_[from].sent;
      sent.insert(sent.end(), out.begin(), out.end());
      FUZZ_REQUIRE(sent.size() <= kMaxSent);
      Bytes& queue = sides_[1 - from].incoming;
      queue.insert(queue.end(), out.begin(), out.end());
    }
  }

  void Check() {
    for (size_t i = 0; i < 2; ++i) {
      Side& side = sides_[i];
      if (!side.failure.ok()) FUZZ_REQUIRE(!side.session->complete() && !side.failure.message().empty());
      if (!side.session->complete()) continue;
      side.was_complete = true;
      FUZZ_REQUIRE(i == 0 ? rules_.client_may : rules_.server_may);
      FUZZ_REQUIRE(side.session->peer() == (i == 0 ? rules_.seen_by_client : rules_.seen_by_server));
    }
    // Damage behind the server's last flight, in the same delivery, fails a client that has just become
    // complete: this check did not see it complete, and its Finished is on its way. A client that does not
    // like the server never sends one.
    FUZZ_REQUIRE(!sides_[1].was_complete || sides_[0].was_complete ||
                 sides_[0].failure.code() == StatusCode::kProtocolViolation);
  }

  void CompareKeys(ByteSpan context, bool same) {
    Bytes other(context.begin(), context.end());
    if (!same) other.push_back(0);
    const auto client = sides_[0].session->MakeProtection(context);
    const auto server = sides_[1].session->MakeProtection(other);
    for (transport::PacketProtection* from : {client.get(), server.get()}) {
      transport::PacketProtection& to = from == client.get() ? *server : *client;
      Bytes header(16), body(50, 7), tag(wire::kTagBytes);
      from->Seal(1, 0, header, body, tag);
      FUZZ_REQUIRE(to.Open(1, 0, header, body, tag) == same);
      if (same) FUZZ_REQUIRE(body == Bytes(50, 7));
    }
  }

  const Meeting& rules_;
  std::array<Side, 2> sides_;
  bool touched_ = false;
};

void Meet(TlsSecurity& client, TlsSecurity& server, const Meeting& rules, FuzzInput& in) {
  const size_t before = __sanitizer_get_current_allocated_bytes();
  Path path(client, server, rules);
  const ByteSpan context = in.Bytes(in.Below(32));
  const bool same_context = !in.Flag();
  for (int steps = 0; !in.empty() && steps < 100; ++steps) path.Step(in);
  path.Finish(context, same_context);
  FUZZ_REQUIRE(__sanitizer_get_current_allocated_bytes() < before + kMaxMemory);
}

// One side presents a file that was damaged inside: it gets in as whom its authority has named, or not at
// all.
void MeetDamaged(FuzzInput& in) {
  const Meeting& good = AllMeetings()[1];
  const bool damaged_client = in.Flag();
  const fuzz::KeyFiles& f = fuzz::AllKeyFiles();
  const std::string file = fuzz::DamageBlock(in, damaged_client ? f.worker : f.server);
  const auto damaged = Make(file, damaged_client ? crypto::Role::kWorker : crypto::Role::kServer);
  if (damaged == nullptr) return;
  Path path(damaged_client ? *damaged : *good.client, damaged_client ? *good.server : *damaged, good);
  for (int rounds = 0; rounds < 8; ++rounds) {
    for (const uint8_t to : {uint8_t{1}, uint8_t{0}}) {
      FuzzInput deliver(&to, 1);
      path.Step(deliver);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto& meetings = AllMeetings();
  fuzz::RestartChance(3);
  FuzzInput in(data, size);
  const uint8_t kind = in.U8();
  if (kind >= 0xe0) {
    MeetDamaged(in);
  } else {
    const Meeting& meeting = meetings[kind % meetings.size()];
    Meet(*meeting.client, *meeting.server, meeting, in);
  }
  return 0;
}
