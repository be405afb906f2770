#include "server/store/redo_log.h"

#include <algorithm>
#include <bit>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/crc32c.h"
#include "server/store/hashed_file.h"

namespace longhaul::server::store {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "values are written as they are in memory");

constexpr std::string_view kMagic = "LHROUND1";
constexpr size_t kPrefixBytes = 24;
constexpr size_t kPieceBytes = size_t{1} << 20;
// 1,024 ranks with a bit for each of 2^20 chunks, in hexadecimal digits, are 256 MB; usual ones have few.
constexpr uint64_t kMaxHeaderBytes = uint64_t{512} << 20;

std::vector<uint8_t> FromHex(const std::string& text) {
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2)
    bytes.push_back(static_cast<uint8_t>(std::stoul(text.substr(i, 2), nullptr, 16)));
  return bytes;
}

json HeaderOf(const TensorImage& image) {
  json counted = json::array();
  for (const Counted& each : image.counted)
    counted.push_back({{"session", each.session},
                       {"round", each.round},
                       {"clock", each.clock},
                       {"chunks", HexOf(each.chunks)},
                       {"replaced", each.replaced}});
  json state = json::array();
  for (const auto& each : image.state) state.push_back(each.name);
  return {{"kind", "tensor"},
          {"name", image.name},
          {"count", image.count},
          {"optimizer", image.optimizer},
          {"rounds", image.rounds},
          {"round", image.round},
          {"shift_epoch", image.shift_epoch},
          {"state", state},
          {"counted", counted}};
}

// All but the values. Throws json::exception, or std::exception of numbers.
TensorImage ImageOf(const json& header) {
  TensorImage image;
  image.name = header.at("name").get<std::string>();
  image.count = header.at("count").get<uint64_t>();
  image.optimizer = header.at("optimizer").get<std::string>();
  image.rounds = header.at("rounds").get<uint64_t>();
  image.round = header.at("round").get<uint64_t>();
  image.shift_epoch = header.at("shift_epoch").get<uint32_t>();
  // The log of an earlier version has neither clocks nor replaced sessions.
  for (const json& each : header.at("counted")) {
    image.counted.push_back({.session = each.at("session").get<uint64_t>(),
                             .round = each.at("round").get<uint64_t>(),
                             .clock = each.value("clock", uint64_t{0}),
                             .chunks = FromHex(each.at("chunks").get<std::string>()),
                             .replaced = each.value("replaced", std::vector<uint64_t>())});
  }
  const auto state = header.at("state").get<std::vector<std::string>>();
  for (const std::string& name : state) image.state.push_back({name, nullptr});
  const bool fits = image.count > 0 && image.round <= image.rounds && image.count < (uint64_t{1} << 40) &&
                    codec::MayKeep(image.optimizer, state);
  if (!fits) throw std::invalid_argument("its header contradicts itself");
  return image;
}

uint64_t DataBytes(const TensorImage& image) {
  return image.count * sizeof(float) * (1 + image.state.size());
}

// Reads, hashes, and knows what is left.
class Cursor {
 public:
  explicit Cursor(InFile* file) : file_(file), left_(file->size()) {}
  uint64_t left() const { return left_; }
  uint32_t crc() const { return crc_; }
  void BeginRecord() { crc_ = 0; }
  bool Read(MutableByteSpan bytes) {
    if (bytes.size() > left_ || !file_->Read(bytes).ok()) return false;
    left_ -= bytes.size();
    crc_ = Crc32c(bytes, crc_);
    return true;
  }

 private:
  InFile* file_;
  uint64_t left_;
  uint32_t crc_ = 0;
};

struct Record {
  json header;
  TensorImage image;
  uint64_t bytes = 0;
};

// "": the record is whole. Else why not.
std::string ReadRecord(Cursor& in, Record* record) {
  in.BeginRecord();
  uint8_t prefix[kPrefixBytes];
  if (!in.Read(prefix)) return "it ends in a record's first bytes";
  uint64_t header_bytes = 0;
  uint64_t data_bytes = 0;
  std::memcpy(&header_bytes, prefix + kMagic.size(), sizeof header_bytes);
  std::memcpy(&data_bytes, prefix + kMagic.size() + sizeof header_bytes, sizeof data_bytes);
  if (std::memcmp(prefix, kMagic.data(), kMagic.size()) != 0) return "what follows is no record";
  if (header_bytes > std::min(kMaxHeaderBytes, in.left()) || data_bytes > in.left() - header_bytes)
    return "it ends in the middle of a record";
  std::string text(header_bytes, '\0');
  if (!in.Read({reinterpret_cast<uint8_t*>(text.data()), text.size()})) return "its header cannot be read";
  record->header = json::parse(text, nullptr, /*allow_exceptions=*/false);
  record->bytes = kPrefixBytes + header_bytes + data_bytes + sizeof(uint32_t);
  try {
    record->image = {};
    if (record->header.at("kind") == "tensor") record->image = ImageOf(record->header);
    if (data_bytes != DataBytes(record->image)) return "a record has another length than it says";
    const auto values = [&]() -> std::shared_ptr<ZeroedArray<float>> {
      auto array = std::make_shared<ZeroedArray<float>>(record->image.count);
      const bool read = in.Read({reinterpret_cast<uint8_t*>(array->data()), array->bytes()});
      return read ? array : nullptr;
    };
    if (data_bytes > 0) {
      if (!(record->image.values = values())) return "its values cannot be read";
      for (auto& each : record->image.state) {
        if (!(each.values = values())) return "its values cannot be read";
      }
    }
  } catch (const std::exception& error) {
    return error.what();
  }
  const uint32_t expected = in.crc();
  uint32_t crc = 0;
  if (!in.Read({reinterpret_cast<uint8_t*>(&crc), sizeof crc})) return "it ends in the middle of a record";
  return crc == expected ? "" : "a record's checksum is wrong";
}

std::optional<uint64_t> NumberOf(const std::string& name) {
  uint64_t number = 0;
  int end = 0;
  if (std::sscanf(name.c_str(), "rounds-%12" SCNu64 ".log%n", &number, &end) != 1) return std::nullopt;
  return static_cast<size_t>(end) == name.size() && name.size() == 23 ? std::optional(number) : std::nullopt;
}

}  // namespace

std::string RedoLog::PathOf(uint64_t file) const {
  char name[64];
  std::snprintf(name, sizeof name, "/rounds-%012" PRIu64 ".log", file);
  return directory_ + name;
}

// --- Reading ---

Result<RedoLog> RedoLog::Open(Files* files, const std::string& directory) {
  RedoLog log(files, directory);
  const auto names = files->List(directory);
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {  // sorted
    const auto number = NumberOf(name);
    if (!number) continue;
    if (Status read = log.Read(*number); !read.ok()) return read;
    log.old_.push_back(*number);
    log.file_ = *number;
  }
  // What was written may not be on the disk yet, where only the process has died: workers hear of it now.
  if (log.old_.empty()) return log;
  if (Status synced = files->SyncDirectory(directory); !synced.ok()) return synced;
  return log;
}

Status RedoLog::Read(uint64_t file) {
  auto in = files_->Open(PathOf(file));
  if (!in.ok()) return in.status();
  if (Status synced = (*in)->Sync(); !synced.ok()) return synced;
  Cursor cursor(in->get());
  while (cursor.left() > 0) {
    Record record;
    std::string bad = ReadRecord(cursor, &record);
    try {
      const std::string kind = bad.empty() ? record.header.at("kind").get<std::string>() : "";
      if (kind == "job") {
        const ResumedJob run{.number = record.header.at("number").get<uint64_t>(),
                             .symbol_bytes = record.header.at("symbol_bytes").get<uint16_t>()};
        if (!loaded_ || loaded_->run.number != run.number || loaded_->over) {
          loaded_.emplace(Loaded{});
          places_.clear();
        }
        loaded_->run = run;
        loaded_->about = {.job = record.header.at("job").get<std::string>(),
                          .settings = record.header.at("settings").dump(),
                          .world_size = record.header.at("world_size").get<uint32_t>()};
      } else if (kind == "over" && loaded_) {
        loaded_->over = true;
      } else if (kind == "tensor" && loaded_) {
        std::erase_if(loaded_->tensors, [&](const auto& known) { return known.name == record.image.name; });
        places_[record.image.name] = {file, record.bytes};
        loaded_->tensors.push_back(std::move(record.image));
      }
    } catch (const json::exception& error) {
      bad = error.what();
    }
    if (bad.empty()) continue;
    if (loaded_) loaded_->cut.push_back(PathOf(file) + ": " + bad);
    return {};
  }
  return {};
}

// --- Writing ---

void RedoLog::Write(const About& about, std::vector<Entry> entries,
                    const std::function<void(const Status&, std::vector<Image>)>& done) {
  std::vector<Image> images;
  const auto append = [&] {
    if (images.empty()) return;
    const Status status = Append(images);
    done(status, std::exchange(images, {}));
  };
  for (Entry& entry : entries) {
    if (entry.image != nullptr) {
      images.push_back(std::move(entry.image));
      continue;
    }
    append();
    done(entry.begin ? Begin(about, entry.begin->first, entry.begin->second) : End(), {});
  }
  append();
}

Status RedoLog::Begin(const About& about, const ResumedJob& run, bool goes_on) {
  job_header_ = json{{"kind", "job"},
                     {"job", about.job},
                     {"settings", json::parse(about.settings)},
                     {"world_size", about.world_size},
                     {"number", run.number},
                     {"symbol_bytes", run.symbol_bytes}}
                    .dump();
  if (!goes_on) places_.clear();
  has_round_ = goes_on;
  out_.reset();
  return NextFile();
}

Status RedoLog::NextFile() {
  if (out_ != nullptr) old_.push_back(file_);
  out_.reset();
  ++file_;
  auto out = files_->Create(PathOf(file_));
  if (!out.ok()) return out.status();
  out_ = *std::move(out);
  written_ = 0;
  Status written = WriteRecord(job_header_, nullptr);
  if (written.ok()) written = out_->Sync();
  if (written.ok()) written = files_->SyncDirectory(directory_);
  if (written.ok()) return written;
  out_.reset();
  old_.push_back(file_);
  return written;
}

Status RedoLog::WriteRecord(const std::string& header, const TensorImage* image) {
  const uint64_t header_bytes = header.size();
  const uint64_t data_bytes = image == nullptr ? 0 : DataBytes(*image);
  std::string head(kMagic);
  head.append(reinterpret_cast<const char*>(&header_bytes), sizeof header_bytes);
  head.append(reinterpret_cast<const char*>(&data_bytes), sizeof data_bytes);
  head += header;
  uint32_t crc = 0;
  Status status;
  const auto write = [&](ByteSpan bytes) {
    for (size_t at = 0; at < bytes.size() && status.ok(); at += kPieceBytes) {
      const ByteSpan piece = bytes.subspan(at, std::min(kPieceBytes, bytes.size() - at));
      crc = Crc32c(piece, crc);
      status = out_->Write(piece);
    }
  };
  write(BytesOf(head));
  if (image != nullptr) {
    write(BytesOf(*image->values));
    for (const auto& each : image->state) write(BytesOf(*each.values));
  }
  const uint32_t all = crc;
  write({reinterpret_cast<const uint8_t*>(&all), sizeof all});
  written_ += head.size() + data_bytes + sizeof all;
  return status;
}

Status RedoLog::Append(std::span<const Image> images) {
  uint64_t states = 0;
  for (const auto& [name, place] : places_) states += place.bytes;
  if (out_ == nullptr || written_ > std::max(kFileBytes, 2 * states)) {
    if (Status next = NextFile(); !next.ok()) return next;
  }
  Status status;
  std::vector<std::pair<std::string, Place>> places;
  for (const Image& image : images) {
    const uint64_t before = written_;
    if (status = WriteRecord(HeaderOf(*image).dump(), image.get()); !status.ok()) break;
    places.push_back({image->name, {file_, written_ - before}});
    has_round_ |= image->round > 0;
  }
  if (status.ok()) status = out_->Sync();
  if (!status.ok()) {  // what follows a record that is not whole is not read
    out_.reset();
    old_.push_back(file_);
    return status;
  }
  for (auto& [name, place] : places) places_[name] = place;
  RemoveUnused();
  return status;
}

Status RedoLog::End() {
  if (out_ == nullptr) return {};
  Status status = WriteRecord(json{{"kind", "over"}}.dump(), nullptr);
  if (status.ok()) status = out_->Sync();
  out_.reset();
  old_.push_back(file_);
  return status;
}

// Best effort: what stays is not used.
void RedoLog::RemoveUnused() {
  if (!has_round_) return;
  std::erase_if(old_, [this](uint64_t file) {
    const bool used = std::ranges::any_of(places_, [file](const auto& p) { return p.second.file == file; });
    return !used && files_->Remove(PathOf(file)).ok();
  });
}

}  // namespace longhaul::server::store
