#include "server/tensor/parameter_store.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "proto/frames.h"

namespace longhaul::server {

std::string TensorSpec::ToString() const {
  const std::string type = dtype == 0 ? "float32" : "dtype " + std::to_string(dtype);
  std::string text = type + "[" + std::to_string(count) + "], " + optimizer.ToString();
  if (wire_dtype != DType::kFloat32) text += ", " + std::string(DTypeName(wire_dtype)) + " up";
  if (result_dtype != DType::kFloat32) text += ", " + std::string(DTypeName(result_dtype)) + " down";
  if (topk_share != 0) text += ", the largest " + std::to_string(topk_share);
  if (priority != 0) text += ", priority " + std::to_string(priority);
  if (staleness != 0) text += ", staleness " + std::to_string(staleness);
  if (quorum != 0) text += ", quorum " + std::to_string(quorum);
  return text;
}

Parameters::Parameters(uint32_t key, TensorSpec spec, codec::ChunkGeometry geometry)
    : key_(key), spec_(std::move(spec)), geometry_(geometry) {
  gradient_geometry_ = codec::GradientGeometry(geometry, spec_.format());
  result_geometry_ = codec::ResultGeometry(geometry, spec_.format());
  for (Held& version : versions_) version = MakeVersion(ZeroedArray<float>(geometry_.count));
}

Parameters::Held Parameters::MakeVersion(ZeroedArray<float> values) const {
  Version version{.values = std::move(values)};
  if (spec_.result_dtype != DType::kFloat32) {
    version.codes = ZeroedArray<uint16_t>(geometry_.count);
    version.coded = transport::ChunkBitmap(result_geometry_.chunks());
  }
  return std::make_shared<Version>(std::move(version));
}

const Parameters::Held& Parameters::OfVersion(uint64_t version) const {
  LH_CHECK(version == version_ || version == version_ + 1);  // else the values are overwritten
  return versions_[version % 2];
}

// To the nearest: every reader has the same bits, and what is rounded away stays in the values.
ByteSpan Parameters::Encoded(Version& version, uint32_t chunk) const {
  const std::span<const float> values = result_geometry_.Elements(version.values.span(), chunk);
  if (version.codes.empty()) return {reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()};
  const std::span<uint16_t> codes = result_geometry_.Elements(version.codes.span(), chunk);
  const MutableByteSpan bytes(reinterpret_cast<uint8_t*>(codes.data()), codes.size_bytes());
  if (version.coded.Set(chunk))
    codec::Quantize(spec_.result_dtype, values, 0, codec::Rounding::Nearest(), bytes);
  return bytes;
}

void Parameters::AwaitInitial(uint32_t rank) {
  LH_CHECK(initial_ != Initial::kReady);
  initial_ = Initial::kAwaited;
  initial_sender_ = rank;
}

void Parameters::SetInitialChunk(uint32_t chunk, std::span<const float> values) {
  LH_CHECK(initial_ == Initial::kAwaited);
  LH_CHECK_OP(values.size(), ==, geometry_.Length(chunk));
  std::copy(values.begin(), values.end(), geometry_.Elements(versions_[0]->values.span(), chunk).begin());
}

void Parameters::Restore(const Values& values, uint64_t version) {
  LH_CHECK_OP(values->size(), ==, geometry_.count);
  LH_CHECK_OP(version_, ==, uint64_t{0});
  version_ = version;
  versions_[version % 2] = MakeVersion(std::move(*std::const_pointer_cast<ZeroedArray<float>>(values)));
  SetReady();
}

void Parameters::Advance() {
  LH_CHECK(initial_ == Initial::kReady);
  ++version_;
}

Status Parameters::BeginWriting() {
  Held& version = versions_[(version_ + 1) % 2];
  try {
    if (version.use_count() > 1) {
      version = MakeVersion(ZeroedArray<float>(geometry_.count));
    } else {
      version->coded = transport::ChunkBitmap(version->coded.size());
    }
  } catch (const std::bad_alloc&) {
    return {StatusCode::kResourceExhausted, "no memory for the next values of tensor \"" + spec_.name +
                                                "\", " + std::to_string(geometry_.count * sizeof(float)) +
                                                " bytes: readers still hold older ones"};
  }
  return {};
}

Status ParameterStore::Check(const TensorSpec& spec) const {
  if (const auto known = keys_.find(spec.name); known != keys_.end()) {
    const Parameters& parameters = *tensors_[known->second];
    if (parameters.spec() == spec) return Status(StatusCode::kAlreadyExists, spec.name);
    return Status(StatusCode::kSettingsMismatch, "tensor \"" + spec.name + "\" is declared as " +
                                                     spec.ToString() + " here, but the server has it as " +
                                                     parameters.spec().ToString());
  }
  if (tensors_.size() >= kMaxTensors) {
    return Status(StatusCode::kResourceExhausted, "more than " + std::to_string(kMaxTensors) + " tensors");
  }
  const uint64_t bound = static_cast<uint64_t>(max_model_.value()) / sizeof(float);
  if (spec.count > bound || elements_ + spec.count > bound) {
    return Status(StatusCode::kResourceExhausted,
                  "tensor \"" + spec.name + "\" of " + std::to_string(spec.count) +
                      " elements does not fit: the model may have " + std::to_string(bound) + " elements, " +
                      std::to_string(elements_) + " are taken (the server's --max-model-bytes)");
  }
  if ((spec.count + chunk_elements_ - 1) / chunk_elements_ > wire::kMaxWindowChunks) {
    return Status(StatusCode::kResourceExhausted, "tensor \"" + spec.name + "\" has more than " +
                                                      std::to_string(wire::kMaxWindowChunks) +
                                                      " chunks; declare it in parts");
  }
  return {};
}

Result<Parameters*> ParameterStore::Declare(const TensorSpec& spec) {
  const Status check = Check(spec);
  if (check.code() == StatusCode::kAlreadyExists) return tensors_[keys_.find(spec.name)->second].get();
  if (!check.ok()) return check;
  const codec::ChunkGeometry geometry{.count = spec.count, .chunk_elements = chunk_elements_};
  const auto key = static_cast<uint32_t>(tensors_.size());
  auto parameters = std::make_unique<Parameters>(key, spec, geometry);
  keys_.emplace(spec.name, key);
  tensors_.push_back(std::move(parameters));
  elements_ += spec.count;
  return tensors_.back().get();
}

void ParameterStore::Undeclare() {
  elements_ -= tensors_.back()->spec().count;
  keys_.erase(tensors_.back()->spec().name);
  tensors_.pop_back();
}

Parameters* ParameterStore::Find(uint32_t key) {
  return key < tensors_.size() ? tensors_[key].get() : nullptr;
}

}  // namespace longhaul::server
