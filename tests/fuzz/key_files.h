// Key files as `longhaul keygen` makes them, the same in every run, and damage to them: of their text, and of
// what is inside their PEM blocks, which no change of the text would leave well-formed.
#pragma once

#include <openssl/evp.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fuzz/fixed_chance.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/property.h"
#include "transport/crypto/keygen.h"

namespace longhaul::fuzz {

// 2026-01-01: the time that all certificates are looked at.
inline constexpr int64_t kToday = 1'767'225'600;
inline constexpr crypto::Validity kThisDay = {kToday - 43'200, kToday + 43'200};
inline constexpr crypto::Validity kLastWeek = {kToday - 8 * 86'400, kToday - 7 * 86'400};

struct KeyFiles {
  std::string psk, other_psk, pears_psk;  // other: of the same job; pears: of another one
  std::string ca;
  std::string server, worker, tool, banned;
  std::string late_server, late_worker, pears_worker;
  std::string other_server, other_worker;  // of another authority
};

inline const KeyFiles& AllKeyFiles() {
  using crypto::Role;
  static const KeyFiles all = [] {
    RestartChance(1);
    const auto text = [](const Result<crypto::SecretBytes>& made) {
      FUZZ_REQUIRE(made.ok());
      return std::string(made->text());
    };
    KeyFiles f;
    f.psk = text(crypto::NewPsk("job"));
    f.other_psk = text(crypto::NewPsk("job"));
    f.pears_psk = text(crypto::NewPsk("pears"));
    f.ca = text(crypto::NewCa("ca", kThisDay));
    const std::string other = text(crypto::NewCa("other", kThisDay));
    const auto issue = [&](const std::string& ca, const char* job, Role role, const char* name,
                           const crypto::Validity& validity) {
      return text(crypto::IssueCertificate(ca, job, role, name, validity));
    };
    f.server = issue(f.ca, "job", Role::kServer, "ams", kThisDay);
    f.worker = issue(f.ca, "job", Role::kWorker, "fra", kThisDay);
    f.tool = issue(f.ca, "job", Role::kTool, "ops", kThisDay);
    f.banned = issue(f.ca, "job", Role::kWorker, "rio", kThisDay);
    f.late_server = issue(f.ca, "job", Role::kServer, "ams", kLastWeek);
    f.late_worker = issue(f.ca, "job", Role::kWorker, "fra", kLastWeek);
    f.pears_worker = issue(f.ca, "pears", Role::kWorker, "fra", kThisDay);
    f.other_server = issue(other, "job", Role::kServer, "ams", kThisDay);
    f.other_worker = issue(other, "job", Role::kWorker, "fra", kThisDay);
    return f;
  }();
  return all;
}

// A few changes anywhere.
template <typename Text>
void Damage(FuzzInput& in, Text& text) {
  for (uint32_t changes = 1 + in.Below(4); changes > 0; --changes) {
    const size_t at = in.U16() % (text.size() + 1);
    const auto here = text.begin() + static_cast<ptrdiff_t>(at);
    switch (in.Below(4)) {
      case 0: {
        const ByteSpan bytes = in.Bytes(in.Below(64));
        text.insert(here, bytes.begin(), bytes.end());
        break;
      }
      case 1:
        text.erase(here, here + static_cast<ptrdiff_t>(std::min<size_t>(in.U8(), text.size() - at)));
        break;
      case 2: {
        const Text part(here, here + static_cast<ptrdiff_t>(std::min<size_t>(in.U16(), text.size() - at)));
        text.insert(text.begin() + static_cast<ptrdiff_t>(in.U16() % (text.size() + 1)), part.begin(),
                    part.end());
        break;
      }
      default:
        if (here != text.end()) *here = static_cast<typename Text::value_type>(in.U8());
    }
  }
}

// What a PEM block holds is taken out, damaged, and put back.
inline std::string DamageBlock(FuzzInput& in, const std::string& file) {
  constexpr std::string_view kBegin = "-----BEGIN ", kDashes = "-----\n";
  size_t begin = file.find(kBegin);
  for (uint32_t skip = in.Below(4); skip > 0; --skip) {
    const size_t next = begin == std::string::npos ? begin : file.find(kBegin, begin + 1);
    if (next != std::string::npos) begin = next;
  }
  if (begin == std::string::npos) return file;
  begin = file.find(kDashes, begin);
  if (begin == std::string::npos) return file;
  begin += kDashes.size();
  const size_t end = file.find("-----END ", begin);
  if (end == std::string::npos) return file;
  std::string base64;
  std::copy_if(file.begin() + static_cast<ptrdiff_t>(begin), file.begin() + static_cast<ptrdiff_t>(end),
               std::back_inserter(base64), [](char c) { return c != '\n'; });
  std::vector<uint8_t> der(base64.size() / 4 * 3 + 3);
  const int size = EVP_DecodeBlock(der.data(), reinterpret_cast<const uint8_t*>(base64.data()),
                                   static_cast<int>(base64.size()));
  if (size <= 0) return file;
  // Padding decodes to zeros.
  der.resize(static_cast<size_t>(size) - static_cast<size_t>(std::ranges::count(base64, '=')));
  Damage(in, der);
  std::string lines;
  for (size_t at = 0; at < der.size(); at += 48) {
    uint8_t line[65];
    const size_t n = std::min<size_t>(48, der.size() - at);
    EVP_EncodeBlock(line, der.data() + at, static_cast<int>(n));
    lines += std::string(reinterpret_cast<const char*>(line)) + "\n";
  }
  return file.substr(0, begin) + lines + file.substr(end);
}

}  // namespace longhaul::fuzz
