// Names that come from files of strangers, as error lines show them.
#pragma once

#include <string>
#include <string_view>

namespace bolt {

// `text` escaped as inside a JSON string, so that no byte of it moves a cursor or ends the line,
// and cut after about 100 characters with "...".
std::string printable(std::string_view text);

}  // namespace bolt
