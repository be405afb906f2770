// The stamp of a job's requester: that the operator's webhook, and no person, wrote who made the job.
#pragma once

#include <string>
#include <string_view>

#include "operator/resource/fields.h"

namespace longhaul::kube {

// HMAC-SHA256 (RFC 2104): 64 hexadecimal digits.
std::string Hmac(std::string_view key, std::string_view text);

// The annotation longhaul.dev/requester-proof: of the requester, of what is known of it, and of all of the
// spec that cannot change later. It does not fit another user's job, nor another spec, nor another namespace.
std::string RequesterProof(std::string_view operator_key, std::string_view name_space,
                           std::string_view requester, std::string_view identity, const Json& spec);
// Of a job as the API server has it.
bool HasProof(std::string_view operator_key, const Json& job);

}  // namespace longhaul::kube
