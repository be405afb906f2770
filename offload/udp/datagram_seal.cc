#include "offload/udp/datagram_seal.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/check.h"
#include "transport/crypto/key_derivation.h"

namespace longhaul::offload {
namespace {

constexpr uint16_t kSealMagic = 0x4c53;
constexpr uint8_t kSealVersion = 2;
constexpr size_t kWordBytes = 4;  // word 0 of the packet, in front of all
constexpr size_t kClearBytes = kWordBytes + DatagramSeal::kHeadBytes;
constexpr uint8_t kCiphers = 3;

// 2^25 datagrams of the largest seg are 2^34 blocks, half of what AES-GCM may seal.
constexpr uint64_t kMostBlocks = (uint64_t{8192} + kHeaderBytes + kClearBytes) / 16 + 3;
static_assert(kMostBlocks << kEpochBits < crypto::LimitsOf(crypto::AeadSuite::kAes128Gcm).sealed_blocks);

crypto::AeadNonce NonceOf(const crypto::SecretBytes& iv, uint64_t number) {
  crypto::AeadNonce nonce{};
  ByteWriter(MutableByteSpan(nonce).subspan(4)).U64(number);
  std::transform(nonce.begin(), nonce.end(), iv.span().begin(), nonce.begin(), std::bit_xor<uint8_t>());
  return nonce;
}

}  // namespace

DatagramSeal::DatagramSeal(SealOptions options, UdpCounters* counters)
    : options_(std::move(options)), counters_(counters) {
  LH_CHECK(options_.start > 0);
  secret_ = crypto::HkdfExpandLabel(crypto::Hash::kSha256, options_.root.span(), "offload", {}, 32);
  options_.root.Wipe();
}

DatagramSeal::Key DatagramSeal::Derive(const Head& head, uint8_t target, const Process& of_target,
                                       crypto::Aead::Use use) const {
  std::array<uint8_t, 44> context{};
  ByteWriter out(context);
  out.U8(static_cast<uint8_t>(head.kind));
  out.U8(static_cast<uint8_t>(head.cipher));
  out.U8(head.source);
  out.U8(target);
  for (const Process& process : {head.process, of_target}) {
    out.U64(process.start);
    out.U64(process.salt);
  }
  Key key;
  key.cipher = head.cipher;
  key.epoch = EpochOf(head);
  out.U64(key.epoch);
  const auto expand = [&](const char* label, size_t bytes) {
    return crypto::HkdfExpandLabel(crypto::Hash::kSha256, secret_.span(), label, context, bytes);
  };
  key.aead = crypto::MakeAead(head.cipher, use, expand("key", crypto::AeadKeyBytes(head.cipher)).span());
  key.iv = expand("iv", crypto::kAeadNonceBytes);
  return key;
}

size_t DatagramSeal::Seal(uint8_t target, ByteSpan packet, MutableByteSpan out) {
  Peer& peer = peers_[target];
  if (peer.process == Process()) {
    ++counters_->packets_without_peer;
    if (!peer.due) peer.due = Kind::kHello;
    return 0;
  }
  const Head head{Kind::kData, options_.cipher, options_.node, self(), peer.number++};
  if (!Fits(peer.sending, head)) {
    peer.sending = Derive(head, target, peer.process, crypto::Aead::Use::kSeal);
  }
  return Write(head, peer.sending, packet, out);
}

size_t DatagramSeal::NextHello(Instant now, uint8_t* target, MutableByteSpan out) {
  std::array<uint8_t, kHelloBytes - kSealBytes> words{};
  ByteWriter(MutableByteSpan(words).subspan(kWordBytes)).U64(options_.site);
  for (uint8_t node = 0; node < kMaxNodes; ++node) {
    Peer& peer = peers_[node];
    if (!IsPeer(node) || !peer.due || !peer.hellos.Take(now)) continue;
    const Head head{*peer.due, options_.cipher, options_.node, self(), peer.hello_number++};
    peer.due.reset();
    *target = node;
    ++counters_->hellos_sent;
    return Write(head, Derive(head, node, {}, crypto::Aead::Use::kSeal), words, out);
  }
  return 0;
}

size_t DatagramSeal::Write(const Head& head, const Key& key, ByteSpan packet, MutableByteSpan out) const {
  const size_t bytes = packet.size() + kSealBytes;
  LH_CHECK(packet.size() >= kWordBytes && out.size() >= bytes);
  ByteWriter writer(out);
  writer.Bytes(packet.first(kWordBytes));
  writer.U16(kSealMagic);
  writer.U8(static_cast<uint8_t>(kSealVersion << 4 | static_cast<uint8_t>(head.kind)));
  writer.U8(static_cast<uint8_t>(static_cast<uint8_t>(head.cipher) << 4 | head.source));
  writer.U64(head.process.start);
  writer.U64(head.process.salt);
  writer.U64(head.number);
  writer.Bytes(packet.subspan(kWordBytes));
  const size_t sealed = packet.size() - kWordBytes;
  key.aead->Seal(NonceOf(key.iv, head.number), out.first(kClearBytes), out.subspan(kClearBytes, sealed),
                 out.subspan(kClearBytes + sealed, crypto::kAeadTagBytes));
  return bytes;
}

std::optional<DatagramSeal::Head> DatagramSeal::ReadHead(ByteSpan datagram) {
  if (datagram.size() < kWordBytes + kSealBytes) return std::nullopt;
  ByteReader reader(datagram.subspan(kWordBytes));
  if (reader.U16() != kSealMagic) return std::nullopt;
  const uint8_t version_and_kind = reader.U8(), cipher_and_source = reader.U8();
  Head head;
  if (version_and_kind >> 4 != kSealVersion) return std::nullopt;
  if ((version_and_kind & 15) > static_cast<uint8_t>(Kind::kAnswer)) return std::nullopt;
  if (cipher_and_source >> 4 >= kCiphers) return std::nullopt;
  head.kind = static_cast<Kind>(version_and_kind & 15);
  head.cipher = static_cast<crypto::AeadSuite>(cipher_and_source >> 4);
  head.source = cipher_and_source & 15;
  head.process.start = reader.U64();
  head.process.salt = reader.U64();
  head.number = reader.U64();
  return head;
}

std::optional<DatagramSeal::Opened> DatagramSeal::Open(Instant now, MutableByteSpan datagram) {
  const auto head = ReadHead(datagram);
  if (!head) {
    ++counters_->foreign;
    return std::nullopt;
  }
  if (!IsPeer(head->source)) {
    ++counters_->unknown_senders;
    return std::nullopt;
  }
  if (head->process < peers_[head->source].process || head->process.start == 0) {
    ++counters_->old_processes;
    return std::nullopt;
  }
  const auto opened =
      head->kind == Kind::kData ? OpenData(now, *head, datagram) : OpenHello(now, *head, datagram);
  if (opened && opened->restarted) ++counters_->restarts;
  return opened;
}

std::optional<DatagramSeal::Opened> DatagramSeal::OpenHello(Instant now, const Head& head,
                                                            MutableByteSpan datagram) {
  Peer& peer = peers_[head.source];
  if (datagram.size() != kHelloBytes) {
    ++counters_->foreign;
    return std::nullopt;
  }
  if (!MayDerive(now, peer)) return std::nullopt;
  Key key = Derive(head, options_.node, {}, crypto::Aead::Use::kOpen);
  if (!Decrypt(key, head, datagram)) {
    ++counters_->forged;
    return std::nullopt;
  }
  if (head.kind == Kind::kHello) peer.due = Kind::kAnswer;
  const bool restarted = Meet(head.process, peer);
  return Opened{head.source, {}, restarted, ByteReader(datagram.subspan(kClearBytes)).U64()};
}

std::optional<DatagramSeal::Opened> DatagramSeal::OpenData(Instant now, const Head& head,
                                                           MutableByteSpan datagram) {
  Peer& peer = peers_[head.source];
  const bool known = head.process == peer.process;
  if (known && peer.window.Seen(head.number)) {
    ++counters_->replayed;
    return std::nullopt;
  }
  Key* key = known && Fits(peer.present, head) ? &peer.present : nullptr;
  if (known && key == nullptr && Fits(peer.previous, head)) key = &peer.previous;
  Key candidate;
  if (key == nullptr) {
    if (!MayDerive(now, peer)) return std::nullopt;
    candidate = Derive(head, options_.node, self(), crypto::Aead::Use::kOpen);
    key = &candidate;
  }
  if (!Decrypt(*key, head, datagram)) {
    ++counters_->forged;
    // It may be for the process before this one.
    if (key == &candidate && !peer.due) peer.due = Kind::kHello;
    return std::nullopt;
  }
  const bool restarted = Meet(head.process, peer);
  if (key == &candidate) peer.previous = std::exchange(peer.present, std::move(candidate));
  peer.window.Mark(head.number);
  ++counters_->opened;
  // Word 0 to where the packet continues.
  std::copy_n(datagram.begin(), kWordBytes, datagram.begin() + kHeadBytes);
  return Opened{head.source, datagram.subspan(kHeadBytes, datagram.size() - kSealBytes), restarted};
}

bool DatagramSeal::MayDerive(Instant now, Peer& peer) {
  if (peer.derivations.Take(now)) return true;
  ++counters_->derivations_refused;
  return false;
}

bool DatagramSeal::Decrypt(Key& key, const Head& head, MutableByteSpan datagram) {
  if (key.failures >= crypto::LimitsOf(key.cipher).forged_packets) return false;
  const size_t sealed = datagram.size() - kWordBytes - kSealBytes;
  const bool opens =
      key.aead->Open(NonceOf(key.iv, head.number), datagram.first(kClearBytes),
                     datagram.subspan(kClearBytes, sealed), datagram.subspan(kClearBytes + sealed));
  if (!opens) ++key.failures;
  return opens;
}

bool DatagramSeal::Meet(const Process& process, Peer& peer) {
  if (process == peer.process) return false;
  const bool restarted = peer.process != Process();
  peer.process = process;
  for (Key* key : {&peer.present, &peer.previous, &peer.sending}) *key = Key();
  peer.window = ReplayWindow();
  return restarted;
}

}  // namespace longhaul::offload
