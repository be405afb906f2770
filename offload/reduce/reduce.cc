#include "offload/reduce/reduce.h"

#include <algorithm>
#include <array>
#include <string>

#include "offload/reduce/kernels.h"

namespace longhaul::offload {
namespace {

bool Has(DataType type, ReduceOp op) {
  const bool integer = type == DataType::kInt32 || type == DataType::kQ32;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      return true;
    case ReduceOp::kProduct:
      return type != DataType::kQ32;
    case ReduceOp::kXor:
      return integer;
  }
  return false;
}

Status Invalid(std::string what) { return {StatusCode::kInvalidArgument, "reduce: " + std::move(what)}; }

Status Check(ReduceOp op, DataType type) {
  if (SizeOf(type) != 0 && Has(type, op)) return Status::Ok();
  return Invalid("type " + std::to_string(static_cast<int>(type)) + " has no operation " +
                 std::to_string(static_cast<int>(op)));
}

}  // namespace

Status Reduce(ReduceOp op, DataType type, std::span<const std::byte* const> sources, size_t elements,
              std::byte* out) {
  if (Status checked = Check(op, type); !checked.ok()) return checked;
  if (sources.empty()) return Invalid("no source");
  if (elements == 0) return Status::Ok();
  if (out == nullptr || std::ranges::count(sources, nullptr) > 0) return Invalid("a null pointer");
  RunReduce(op, type, sources.data(), sources.size(), elements * SizeOf(type), out);
  return Status::Ok();
}

Status Accumulate(ReduceOp op, DataType type, std::byte* into, const std::byte* data, size_t elements) {
  const std::array<const std::byte*, 2> sources = {into, data};
  return Reduce(op, type, sources, elements, into);
}

Status Finish(ReduceOp op, DataType type, std::byte* into, size_t elements, size_t participants) {
  if (Status checked = Check(op, type); !checked.ok()) return checked;
  if (participants < 1 || participants > kMaxParticipants) {
    return Invalid(std::to_string(participants) + " participants");
  }
  if (op != ReduceOp::kAverage || elements == 0) return Status::Ok();
  if (into == nullptr) return Invalid("a null pointer");
  RunDivide(type, into, elements * SizeOf(type), participants);
  return Status::Ok();
}

}  // namespace longhaul::offload
