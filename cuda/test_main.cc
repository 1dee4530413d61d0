// GPU tests skip (77) where there is no device.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>

#include "core/engine/backend.h"

int main(int argc, char** argv) {
  std::string why;
  if (bolt::cuda_devices(&why).empty()) {
    std::fprintf(stderr, "skipped: %s\n", why.c_str());
    return 77;
  }
  doctest::Context context(argc, argv);
  return context.run();
}
