// Files whose bytes are counted and hashed on their way.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "base/disk/files.h"
#include "base/zeroed_array.h"
#include "longhaul/status.h"

struct evp_md_ctx_st;  // OpenSSL's

namespace longhaul::server::store {

inline ByteSpan BytesOf(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}
inline ByteSpan BytesOf(const ZeroedArray<float>& values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.bytes()};
}

class Sha256 {
 public:
  Sha256();
  void Update(ByteSpan bytes);
  // In 64 hexadecimal digits; then it is used up.
  std::string Finish();

 private:
  std::unique_ptr<evp_md_ctx_st, void (*)(evp_md_ctx_st*)> context_;
};

class HashedWriter {
 public:
  explicit HashedWriter(std::unique_ptr<OutFile> file) : file_(std::move(file)) {}
  // In pieces of kPieceBytes, so that the first error is found soon.
  Status Write(ByteSpan bytes);
  Status Sync() { return file_->Sync(); }
  uint64_t bytes() const { return bytes_; }
  std::string Finish() { return hash_.Finish(); }

  static constexpr size_t kPieceBytes = size_t{1} << 20;

 private:
  std::unique_ptr<OutFile> file_;
  Sha256 hash_;
  uint64_t bytes_ = 0;
};

class HashedReader {
 public:
  explicit HashedReader(std::unique_ptr<InFile> file) : file_(std::move(file)), left_(file_->size()) {}
  uint64_t size() const { return file_->size(); }
  // As InFile::Read. kDataLoss: more than is left of the size that it had when it was opened.
  Status Read(MutableByteSpan bytes);
  // The rest, looked at and dropped.
  Status Skip();
  std::string Finish() { return hash_.Finish(); }

 private:
  std::unique_ptr<InFile> file_;
  Sha256 hash_;
  uint64_t left_;
};

}  // namespace longhaul::server::store
