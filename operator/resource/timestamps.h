// Times as Kubernetes writes them: RFC 3339 in UTC with whole seconds, "2026-11-28T07:53:28Z". Here an
// Instant counts from the Unix epoch, since objects outlive the operator.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/instant.h"

namespace longhaul::kube {

// Fractions of a second are cut.
std::string TimestampText(Instant time);
// Fractions are taken and cut ("...28.123456Z", MicroTime); other zones than Z are not written by an API
// server and give nothing, as other text does. Years 1970 to 2261.
std::optional<Instant> ParseTimestamp(std::string_view text);

}  // namespace longhaul::kube
