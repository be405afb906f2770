#include "server/store/hashed_file.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/check.h"

namespace longhaul::server::store {

Sha256::Sha256() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
  LH_CHECK(context_ != nullptr && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
}

void Sha256::Update(ByteSpan bytes) {
  LH_CHECK(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1);
}

std::string Sha256::Finish() {
  std::array<uint8_t, 32> digest{};
  LH_CHECK(EVP_DigestFinal_ex(context_.get(), digest.data(), nullptr) == 1);
  return HexOf(digest);
}

Status HashedWriter::Write(ByteSpan bytes) {
  while (!bytes.empty()) {
    const ByteSpan piece = bytes.first(std::min(bytes.size(), kPieceBytes));
    if (Status written = file_->Write(piece); !written.ok()) return written;
    hash_.Update(piece);
    bytes_ += piece.size();
    bytes = bytes.subspan(piece.size());
  }
  return {};
}

Status HashedReader::Read(MutableByteSpan bytes) {
  if (bytes.size() > left_) return {StatusCode::kDataLoss, "the file is shorter than its content says"};
  while (!bytes.empty()) {
    const MutableByteSpan piece = bytes.first(std::min(bytes.size(), HashedWriter::kPieceBytes));
    if (Status got = file_->Read(piece); !got.ok()) return got;
    hash_.Update(piece);
    left_ -= piece.size();
    bytes = bytes.subspan(piece.size());
  }
  return {};
}

Status HashedReader::Skip() {
  std::vector<uint8_t> piece(std::min<uint64_t>(left_, HashedWriter::kPieceBytes));
  while (left_ > 0) {
    if (Status got = Read(std::span(piece).first(std::min<uint64_t>(left_, piece.size()))); !got.ok())
      return got;
  }
  return {};
}

}  // namespace longhaul::server::store
