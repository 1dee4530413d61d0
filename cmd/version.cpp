// Facts come from build_info.h, the contract from core/base/contract.h, the hash from our own file.
#include "cmd/version.h"

#include <fmt/format.h>

#include "cmd/build_info.h"
#include "cmd/streams.h"
#include "core/base/contract.h"
#include "core/base/cpu.h"
#include "receipts/build_facts.h"

namespace bolt {

void print_version(bool json) {
  const BuildInfo& info = build_info();
  const std::string dirty = info.diff.empty() ? "" : "+changes";
  std::string isas;
  for (const Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512}) {
    if (!cpu_has(isa)) continue;
    isas += json ? fmt::format("{}\"{}\"", isas.empty() ? "" : ",", isa_name(isa))
                 : fmt::format("{}{}", isas.empty() ? "" : " ", isa_name(isa));
  }
  if (!json) {
    write_out(fmt::format("bolt {} ({}{})\ncontract {}\ndevices: cpu ({}; {} cores)\n",
                          info.version,
                          info.commit.empty() ? "no commit" : info.commit.substr(0, 12), dirty,
                          kContractId, isas, usable_cores()));
    return;
  }
  // Every text here is ours and plain ASCII, so nothing needs escaping.
  write_out(fmt::format(
      R"({{"name":"bolt","version":"{}","commit":"{}","tree":"{}","diff":"{}",)"
      R"("contract":{{"id":"{}","sha256":"{}"}},"devices":[{{"kind":"cpu","isa":[{}],"cores":{}}}],)"
      R"("executable_sha256":"{}","build":{{"compiler":"{}","type":"{}","flags":"{}","openssl":"{}",)"
      R"("cuda":{},"static":{}}}}})"
      "\n",
      info.version, info.commit, info.tree, info.diff, kContractId, kContractSha256, isas,
      usable_cores(), receipts::executable_sha256(), info.compiler, info.build_type, info.flags,
      info.openssl, info.cuda == "ON", info.is_static == "ON"));
}

}  // namespace bolt
