// Text that travels: CLOSE reasons are UTF-8 (RFC 3629) and bounded.
#pragma once

#include <cstddef>
#include <string_view>

namespace longhaul::wire {

// The longest prefix of `text` that is valid UTF-8 and at most `max_bytes` long; it never cuts a character.
// Overlong forms, surrogates and code points above U+10FFFF are not valid.
std::string_view ValidUtf8Prefix(std::string_view text, size_t max_bytes);

}  // namespace longhaul::wire
