#include "core/text/tokenizer.h"

#include <doctest/doctest.h>
TEST_CASE("x") {}
