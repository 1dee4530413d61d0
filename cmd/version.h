// `bolt --version`: what this executable is and promises, on one line or as JSON.
#pragma once

namespace bolt {

void print_version(bool json);

}  // namespace bolt
