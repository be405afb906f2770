// Text that travels: CLOSE reasons are UTF-8 (RFC 3629) and bounded; what others wrote is shown on terminals
// and in logs.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace longhaul::wire {

// The longest prefix of `text` that is valid UTF-8 and at most `max_bytes` long; it never cuts a character.
// Overlong forms, surrogates and code points above U+10FFFF are not valid.
std::string_view ValidUtf8Prefix(std::string_view text, size_t max_bytes);

// What a peer wrote, harmless on a terminal and in a line of a log: control characters (also DEL,
// U+0080..U+009F, and those that break lines or turn the direction of writing: U+2028..U+202E,
// U+2066..U+2069) and bytes that are not UTF-8 become \xHH. Cut to max_bytes, never inside a character or an
// escape.
std::string Printable(std::string_view text, size_t max_bytes);

// Whether Printable would leave it as it is, but for its length: what a name must be.
bool IsPrintable(std::string_view text);

}  // namespace longhaul::wire
