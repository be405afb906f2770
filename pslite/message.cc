#include "pslite/message.h"

#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <span>
#include <utility>

namespace longhaul::pslite {
namespace {

static_assert(std::endian::native == std::endian::little, "keys and values travel as they lie in memory");

enum class Kind : uint8_t { kHello, kGreeting, kWelcome, kBarrier, kRelease, kBye, kData };

constexpr uint32_t kMagic = 0x50534c31;  // "PSL1": this protocol, version 1
// Where arrays begin in a kData, so that any type of value is aligned.
constexpr size_t kHeadBytes = 64;
constexpr size_t kAlignment = 16;

constexpr uint8_t kRequest = 1, kPush = 2, kPull = 4, kSimple = 8;

constexpr size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Of everything but kData.
template <typename Write>
Bytes Small(Kind kind, size_t room, Write write) {
  Bytes bytes = Bytes::Of(room);
  ByteWriter out({bytes.data.get(), bytes.size});
  out.U8(static_cast<uint8_t>(kind));
  write(out);
  bytes.size = out.size();
  return bytes;
}

void WriteAddress(ByteWriter& out, const Address& address) {
  out.Bytes(address.ip);
  out.U16(address.port);
}

Address ReadAddress(ByteReader& in) {
  Address address;
  const ByteSpan ip = in.Bytes(address.ip.size());
  if (in.ok()) std::memcpy(address.ip.data(), ip.data(), ip.size());
  address.port = in.U16();
  return address;
}

void WriteBarrier(ByteWriter& out, const Barrier& barrier) {
  out.U32(barrier.id);
  out.U32(barrier.group);
  out.U8(barrier.last ? 1 : 0);
}

Barrier ReadBarrier(ByteReader& in) {
  Barrier barrier;
  barrier.id = in.U32();
  barrier.group = in.U32();
  barrier.last = in.U8() == 1;
  return barrier;
}

// How many follow; none that could not.
uint32_t ReadCount(ByteReader& in, size_t bytes_each) {
  const uint32_t count = in.U32();
  if (count > in.remaining() / bytes_each) in.Fail();
  return in.ok() ? count : 0;
}

Hello ReadHello(ByteReader& in) {
  if (in.U32() != kMagic) in.Fail();
  Hello hello;
  const uint8_t role = in.U8();
  if (role > static_cast<uint8_t>(Role::kWorker)) in.Fail();
  hello.role = static_cast<Role>(role);
  hello.workers = in.U32();
  hello.servers = in.U32();
  hello.customer = in.U32();
  if (in.U8() == 1) hello.address = ReadAddress(in);
  return hello;
}

Greeting ReadGreeting(ByteReader& in) {
  if (in.U32() != kMagic) in.Fail();
  Greeting greeting;
  greeting.ids.resize(ReadCount(in, 4));
  for (uint32_t& id : greeting.ids) id = in.U32();
  return greeting;
}

Welcome ReadWelcome(ByteReader& in) {
  Welcome welcome;
  welcome.own.resize(ReadCount(in, 8));
  for (Welcome::Own& own : welcome.own) {
    own.customer = in.U32();
    own.id = in.U32();
  }
  welcome.servers.resize(ReadCount(in, 18));
  for (Address& server : welcome.servers) server = ReadAddress(in);
  return welcome;
}

// The elements at `at`, which `bytes` keeps alive.
template <typename V>
ps::SArray<V> View(const Bytes& bytes, size_t at, size_t count) {
  ps::SArray<V> view;
  view.reset(reinterpret_cast<V*>(bytes.data.get() + at), count, [kept = bytes.data](V*) {});
  return view;
}

int ReadInt(ByteReader& in) { return static_cast<int>(in.U32()); }

std::optional<ps::Message> ReadData(ByteReader& in, const Bytes& bytes) {
  ps::Message message;
  const uint8_t flags = in.U8();
  message.request = (flags & kRequest) != 0;
  message.push = (flags & kPush) != 0;
  message.pull = (flags & kPull) != 0;
  message.simple_app = (flags & kSimple) != 0;
  message.value_bytes = in.U16();
  message.app_id = ReadInt(in);
  message.customer_id = ReadInt(in);
  message.sender = ReadInt(in);
  message.recver = ReadInt(in);
  message.timestamp = ReadInt(in);
  message.head = ReadInt(in);
  const uint64_t keys = in.U64();
  const uint64_t value_bytes = in.U64();
  const uint64_t lens = in.U64();
  if (!in.ok() || message.value_bytes == 0 || keys > kMaxMessageBytes / sizeof(ps::Key) ||
      value_bytes > kMaxMessageBytes || lens > kMaxMessageBytes / sizeof(int) ||
      value_bytes % message.value_bytes != 0) {
    return std::nullopt;
  }
  const size_t values_at = kHeadBytes + Aligned(keys * sizeof(ps::Key));
  const size_t lens_at = values_at + Aligned(value_bytes);
  if (lens_at + lens * sizeof(int) != bytes.size) return std::nullopt;
  message.keys = View<ps::Key>(bytes, kHeadBytes, keys);
  message.vals = View<char>(bytes, values_at, value_bytes);
  message.lens = View<int>(bytes, lens_at, lens);
  return message;
}

// `data` and zeros up to the alignment.
template <typename V>
uint8_t* Append(uint8_t* out, const ps::SArray<V>& data, bool last = false) {
  const size_t bytes = data.size() * sizeof(V);
  if (bytes > 0) std::memcpy(out, data.data(), bytes);
  if (last) return out + bytes;
  std::memset(out + bytes, 0, Aligned(bytes) - bytes);
  return out + Aligned(bytes);
}

}  // namespace

Bytes Bytes::Of(size_t size) { return {std::shared_ptr<uint8_t[]>(new uint8_t[size]), size}; }

Bytes Encode(const Hello& hello) {
  return Small(Kind::kHello, 64, [&](ByteWriter& out) {
    out.U32(kMagic);
    out.U8(static_cast<uint8_t>(hello.role));
    out.U32(hello.workers);
    out.U32(hello.servers);
    out.U32(hello.customer);
    out.U8(hello.address ? 1 : 0);
    if (hello.address) WriteAddress(out, *hello.address);
  });
}

Bytes Encode(const Greeting& greeting) {
  return Small(Kind::kGreeting, 16 + 4 * greeting.ids.size(), [&](ByteWriter& out) {
    out.U32(kMagic);
    out.U32(static_cast<uint32_t>(greeting.ids.size()));
    for (const uint32_t id : greeting.ids) out.U32(id);
  });
}

Bytes Encode(const Welcome& welcome) {
  return Small(Kind::kWelcome, 16 + 8 * welcome.own.size() + 18 * welcome.servers.size(),
               [&](ByteWriter& out) {
                 out.U32(static_cast<uint32_t>(welcome.own.size()));
                 for (const Welcome::Own& own : welcome.own) {
                   out.U32(own.customer);
                   out.U32(own.id);
                 }
                 out.U32(static_cast<uint32_t>(welcome.servers.size()));
                 for (const Address& server : welcome.servers) WriteAddress(out, server);
               });
}

Bytes Encode(const Barrier& barrier) {
  return Small(Kind::kBarrier, 16, [&](ByteWriter& out) { WriteBarrier(out, barrier); });
}

Bytes Encode(const Release& release) {
  return Small(Kind::kRelease, 16, [&](ByteWriter& out) { WriteBarrier(out, release.barrier); });
}

Bytes Encode(const Bye&) {
  return Small(Kind::kBye, 1, [](ByteWriter&) {});
}

Result<Bytes> Encode(const ps::Message& m) {
  const size_t key_bytes = Aligned(m.keys.size() * sizeof(ps::Key));
  const size_t size = kHeadBytes + key_bytes + Aligned(m.vals.size()) + m.lens.size() * sizeof(int);
  if (size > kMaxMessageBytes || m.value_bytes > std::numeric_limits<uint16_t>::max()) {
    return Status(StatusCode::kInvalidArgument,
                  "a message of " + std::to_string(size) + " bytes: one node gets at most " +
                      std::to_string(kMaxMessageBytes) + " at once, in values of at most 65535");
  }
  Bytes bytes = Bytes::Of(size);
  std::memset(bytes.data.get(), 0, kHeadBytes);
  ByteWriter out({bytes.data.get(), kHeadBytes});
  out.U8(static_cast<uint8_t>(Kind::kData));
  out.U8(static_cast<uint8_t>((m.request ? kRequest : 0) | (m.push ? kPush : 0) | (m.pull ? kPull : 0) |
                              (m.simple_app ? kSimple : 0)));
  out.U16(static_cast<uint16_t>(m.value_bytes));
  for (const int number : {m.app_id, m.customer_id, m.sender, m.recver, m.timestamp, m.head}) {
    out.U32(static_cast<uint32_t>(number));
  }
  out.U64(m.keys.size());
  out.U64(m.vals.size());
  out.U64(m.lens.size());
  uint8_t* next = bytes.data.get() + kHeadBytes;
  next = Append(next, m.keys);
  next = Append(next, m.vals);
  Append(next, m.lens, true);
  return bytes;
}

Result<Decoded> Decode(const Bytes& bytes) {
  ByteReader in(bytes.span());
  std::optional<Decoded> decoded;
  switch (static_cast<Kind>(in.U8())) {
    case Kind::kHello:
      decoded = ReadHello(in);
      break;
    case Kind::kGreeting:
      decoded = ReadGreeting(in);
      break;
    case Kind::kWelcome:
      decoded = ReadWelcome(in);
      break;
    case Kind::kBarrier:
      decoded = ReadBarrier(in);
      break;
    case Kind::kRelease:
      decoded = Release{ReadBarrier(in)};
      break;
    case Kind::kBye:
      decoded = Bye{};
      break;
    case Kind::kData:
      if (auto data = ReadData(in, bytes)) return Decoded(*std::move(data));
      break;
  }
  if (decoded && in.AtEnd()) return *std::move(decoded);
  return Status(StatusCode::kProtocolViolation, "a message that is none of ps/ps.h");
}

bool InGroup(uint32_t id, uint32_t group) {
  const uint32_t bit = id == ps::kScheduler ? ps::kScheduler
                       : id % 2 == 0        ? ps::kServerGroup
                                            : ps::kWorkerGroup;
  return (group & bit) != 0;
}

Role RoleOf(uint32_t id) {
  return id == ps::kScheduler ? Role::kScheduler : id % 2 == 0 ? Role::kServer : Role::kWorker;
}

std::string NameOf(Role role) {
  return role == Role::kScheduler ? "scheduler" : role == Role::kServer ? "server" : "worker";
}

std::string NameOf(uint32_t id) {
  const Role role = RoleOf(id);
  return role == Role::kScheduler ? "scheduler" : NameOf(role) + " " + std::to_string((id - 8) / 2);
}

}  // namespace longhaul::pslite
