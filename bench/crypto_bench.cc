// What security costs: per packet, with the integrity tag beside it, and per handshake.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "transport/core/security/integrity_tag.h"
#include "transport/crypto/aead_protection.h"
#include "transport/crypto/keygen.h"
#include "transport/crypto/long_protection.h"
#include "transport/crypto/tls_security.h"

namespace longhaul::crypto {
namespace {

constexpr size_t kChunkBytes = 1408;  // one DATA packet's, in a 1500-byte MTU
constexpr int64_t kNow = 1'767'225'600;
constexpr Validity kToday = {kNow - 1000, kNow + 1000};

std::unique_ptr<transport::PacketProtection> Protection(AeadSuite suite) {
  const SecretBytes secret(HashBytes(AeadHash(suite)));
  return std::make_unique<AeadProtection>(suite, secret, secret);
}
std::unique_ptr<transport::PacketProtection> Aes128Gcm() { return Protection(AeadSuite::kAes128Gcm); }
std::unique_ptr<transport::PacketProtection> Aes256Gcm() { return Protection(AeadSuite::kAes256Gcm); }
std::unique_ptr<transport::PacketProtection> ChaCha() { return Protection(AeadSuite::kChaCha20Poly1305); }
std::unique_ptr<transport::PacketProtection> Tag() { return std::make_unique<transport::IntegrityTag>(); }
std::unique_ptr<transport::PacketProtection> Long() {
  return std::make_unique<LongProtection>(PublicLongKey(), false);
}

struct Packet {
  std::vector<uint8_t> header = std::vector<uint8_t>(wire::kShortHeaderBytes + wire::kDataHeaderBytes);
  std::vector<uint8_t> body = std::vector<uint8_t>(kChunkBytes, 0x5a);
  std::vector<uint8_t> tag = std::vector<uint8_t>(wire::kTagBytes);
};

template <std::unique_ptr<transport::PacketProtection> (*Make)()>
void BM_Seal(benchmark::State& state) {
  const auto protection = Make();
  Packet packet;
  wire::PacketNumber number = 0;
  for (auto _ : state) protection->Seal(++number, 0, packet.header, packet.body, packet.tag);
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kChunkBytes));
}
BENCHMARK(BM_Seal<Aes128Gcm>);
BENCHMARK(BM_Seal<Aes256Gcm>);
BENCHMARK(BM_Seal<ChaCha>);
BENCHMARK(BM_Seal<Tag>);
BENCHMARK(BM_Seal<Long>);

// What comes is what a peer sealed: eight packets in turn, each restored before it is opened again.
template <std::unique_ptr<transport::PacketProtection> (*Make)()>
void BM_Open(benchmark::State& state) {
  const auto protection = Make();
  std::vector<Packet> packets(8);
  for (size_t i = 0; i < packets.size(); ++i) {
    protection->Seal(i, 0, packets[i].header, packets[i].body, packets[i].tag);
  }
  size_t next = 0;
  bool opened = true;
  std::vector<uint8_t> body(kChunkBytes);
  for (auto _ : state) {
    const Packet& packet = packets[next];
    std::copy(packet.body.begin(), packet.body.end(), body.begin());
    opened &= protection->Open(next, 0, packet.header, body, packet.tag);
    next = (next + 1) % packets.size();
  }
  if (!opened) state.SkipWithError("a packet did not open");
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kChunkBytes));
}
BENCHMARK(BM_Open<Aes128Gcm>);
BENCHMARK(BM_Open<Aes256Gcm>);
BENCHMARK(BM_Open<ChaCha>);
BENCHMARK(BM_Open<Tag>);
BENCHMARK(BM_Open<Long>);

// A peer that changes its keys with every packet, without an exchange: each packet is of a phase that the
// receiver has no keys for. And what an exchange of both sides costs, which a peer gets once per second at
// most.
void BM_OpenOtherPhase(benchmark::State& state) {
  const auto protection = Aes128Gcm();
  Packet packet;
  packet.header[0] = 1;
  wire::PacketNumber number = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(protection->Open(++number, 0, packet.header, packet.body, packet.tag));
  }
}
BENCHMARK(BM_OpenOtherPhase);

void BM_KeyExchange(benchmark::State& state) {
  const auto a = Aes128Gcm(), b = Aes128Gcm();
  Packet packet;
  wire::PacketNumber number = 0;
  for (auto _ : state) {
    const bool ok = a->Conclude(*b->Answer(a->Offer()));
    a->UpdateKeys();
    for (const auto& [from, to] : {std::pair(a.get(), b.get()), std::pair(b.get(), a.get())}) {
      packet.header[0] = from->key_phase() ? 1 : 0;
      from->Seal(++number, 0, packet.header, packet.body, packet.tag);
      if (!to->Open(number, 0, packet.header, packet.body, packet.tag))
        state.SkipWithError("a packet did not open");
    }
    if (!ok) state.SkipWithError("the exchange failed");
  }
}
BENCHMARK(BM_KeyExchange);

// The AEAD alone: OpenSSL's, and the one that packets are sealed with here.
template <std::unique_ptr<Aead> (*Make)(AeadSuite, Aead::Use, ByteSpan)>
void BM_AeadSeal(benchmark::State& state) {
  const auto suite = static_cast<AeadSuite>(state.range(0));
  const SecretBytes key(AeadKeyBytes(suite));
  const auto aead = Make(suite, Aead::Use::kSeal, key.span());
  Packet packet;
  AeadNonce nonce{};
  for (auto _ : state) {
    ++nonce[0];
    aead->Seal(nonce, packet.header, packet.body, packet.tag);
  }
  state.SetLabel(std::string(AeadName(suite)));
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kChunkBytes));
}
BENCHMARK(BM_AeadSeal<MakeEvpAead>)->DenseRange(0, 2);
BENCHMARK(BM_AeadSeal<MakeAead>)->DenseRange(0, 2);

std::unique_ptr<TlsSecurity> MakeSecurity(const SecretBytes& file, Role role) {
  TlsOptions options;
  options.role = role;
  options.wall_clock = [] { return kNow; };
  return TlsSecurity::Create(ParseKeyFile(file.text()).value(), std::move(options)).value();
}

// Both sides' work of one handshake, keys included.
void Handshakes(benchmark::State& state, TlsSecurity& client_security, TlsSecurity& server_security) {
  size_t bytes = 0;
  for (auto _ : state) {
    auto client = client_security.NewSession(true), server = server_security.NewSession(false);
    bytes = 0;
    while (!server->complete()) {
      for (auto [from, to] : {std::pair(client.get(), server.get()), std::pair(server.get(), client.get())}) {
        const std::vector<uint8_t> data = from->TakeData();
        bytes += data.size();
        if (!to->HandleData(data).ok()) return state.SkipWithError("the handshake failed");
      }
    }
    benchmark::DoNotOptimize(client->MakeProtection({}));
    benchmark::DoNotOptimize(server->MakeProtection({}));
  }
  state.counters["bytes"] = static_cast<double>(bytes);
}

void BM_PskHandshake(benchmark::State& state) {
  const SecretBytes file = NewPsk("job").value();
  const auto client = MakeSecurity(file, Role::kWorker), server = MakeSecurity(file, Role::kServer);
  Handshakes(state, *client, *server);
}
BENCHMARK(BM_PskHandshake)->Unit(benchmark::kMicrosecond);

void BM_CertificateHandshake(benchmark::State& state) {
  const SecretBytes ca = NewCa("ca", kToday).value();
  const auto client =
      MakeSecurity(IssueCertificate(ca.text(), "job", Role::kWorker, "w", kToday).value(), Role::kWorker);
  const auto server =
      MakeSecurity(IssueCertificate(ca.text(), "job", Role::kServer, "s", kToday).value(), Role::kServer);
  Handshakes(state, *client, *server);
}
BENCHMARK(BM_CertificateHandshake)->Unit(benchmark::kMicrosecond);

void BM_CookieCheck(benchmark::State& state) {
  const auto server = MakeSecurity(NewPsk("job").value(), Role::kServer);
  const Address from = Address::V4(192, 0, 2, 1, 7700);
  const auto cookie = server->MakeCookie({}, from, {7});
  for (auto _ : state) benchmark::DoNotOptimize(server->CheckCookie({}, from, {7}, *cookie));
}
BENCHMARK(BM_CookieCheck);

}  // namespace
}  // namespace longhaul::crypto
