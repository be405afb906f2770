// What is known of texts without them: of a script its mark, of a job's requester that the operator's
// webhook, and no person, wrote it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "operator/resource/fields.h"

namespace longhaul::kube {

// 1,000 jobs with such scripts take 4 MB of the operator's 50.
inline constexpr size_t kKeptScriptBytes = size_t{4} << 10;

std::string Sha256(std::string_view text);  // 64 hexadecimal digits

// Stands for a script in memory: its SHA-256, behind "#!" where it begins so. Short scripts, and marks, are
// their own.
std::string ScriptMark(const std::string& script);
bool IsScriptMark(std::string_view text);

// HMAC-SHA256 (RFC 2104): 64 hexadecimal digits.
std::string Hmac(std::string_view key, std::string_view text);

// The annotation longhaul.dev/requester-proof: of the requester, of what is known of it, and of all of the
// spec that cannot change later, with the script's mark. It does not fit another user's job, nor another
// spec, nor another namespace.
std::string RequesterProof(std::string_view operator_key, std::string_view name_space,
                           std::string_view requester, std::string_view identity, const Json& spec);
// Of a job as the API server has it.
bool HasProof(std::string_view operator_key, const Json& job);

}  // namespace longhaul::kube
