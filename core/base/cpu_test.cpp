// The processor's choices: consistent, and a clear refusal.
#include "core/base/cpu.h"

#include <doctest/doctest.h>
#include <sched.h>

#include <string>

#include "core/base/error.h"

using namespace bolt;

TEST_CASE("cpu: the best choice is one that is here, and wider ones imply narrower ones") {
  CHECK(cpu_has(Isa::scalar));
  CHECK(cpu_has(resolve_isa(Isa::automatic)));
  CHECK(resolve_isa(Isa::automatic) != Isa::automatic);
  if (cpu_has(Isa::avx512)) CHECK(cpu_has(Isa::avx2));
  if (cpu_has(Isa::avx2)) CHECK(cpu_has_fma());
  for (Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512}) {
    if (cpu_has(isa)) {
      CHECK(resolve_isa(isa) == isa);
      continue;
    }
    try {
      resolve_isa(isa);
      FAIL("resolved an instruction set that is not here");
    } catch (const Error& e) {
      CHECK(e.code == Exit::usage);
      CHECK(std::string(e.what()).find(isa_name(isa)) != std::string::npos);
    }
  }
  // The compiler's own detection, written apart from ours.
  CHECK(cpu_has(Isa::avx2) == (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")));
  CHECK(cpu_has(Isa::avx512) ==
        (__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi")));
}

TEST_CASE("cpu: usable cores follow the affinity") {
  const int before = usable_cores();
  CHECK(before >= 1);
  cpu_set_t all, one;
  REQUIRE(sched_getaffinity(0, sizeof all, &all) == 0);
  CHECK(before <= CPU_COUNT(&all));
  CPU_ZERO(&one);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &all)) {
      CPU_SET(core, &one);
      break;
    }
  }
  REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
  CHECK(usable_cores() == 1);
  REQUIRE(sched_setaffinity(0, sizeof all, &all) == 0);
  CHECK(usable_cores() == before);
}
