// Facts come from build_info.h, the contract from core/base/contract.h, the hash from our own file.
#include "cmd/version.h"

#include <fmt/format.h>
#include <pcre2.h>

#include <CLI/Version.hpp>
#include <string>

#include "cmd/build_info.h"
#include "cmd/streams.h"
#include "core/base/contract.h"
#include "core/base/cpu.h"
#include "core/base/json.h"
#include "core/engine/backend.h"
#include "core/ops/contract.h"
#include "core/ops/host.h"
#include "receipts/build_facts.h"

namespace bolt {

namespace {

std::string devices_text() {
  std::string isas;
  for (const Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512}) {
    if (cpu_has(isa)) isas += (isas.empty() ? "" : " ") + std::string(isa_name(isa));
  }
  std::string text = fmt::format("device    cpu ({}; {} cores)\n", isas, usable_cores());
  for (const CudaDevice& gpu : cuda_devices()) {
    text += fmt::format("device    cuda:{} ({}, {}, {:.0f} GB)\n", gpu.ordinal, gpu.name, gpu.arch,
                        static_cast<double>(gpu.memory_bytes) / 1e9);
  }
  return text;
}

void write_devices(JsonWriter& json) {
  json.key("devices").begin_array();
  json.begin_object().member("kind", "cpu").member("cores", usable_cores());
  json.key("isa").begin_array();
  for (const Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512}) {
    if (cpu_has(isa)) json.value(isa_name(isa));
  }
  json.end_array();
  // Computed here and now: equal to the contract's own digest, or this machine breaks it.
  const Isa best = resolve_isa(Isa::automatic);
  HostOps ops(usable_cores(), best);
  json.member("checked_isa", isa_name(best)).member("vectors_sha256", contract_digest(ops));
  json.end_object();
  for (const CudaDevice& gpu : cuda_devices()) {
    json.begin_object().member("kind", "cuda").member("ordinal", gpu.ordinal);
    json.member("name", gpu.name).member("arch", gpu.arch);
    json.member("memory_bytes", gpu.memory_bytes).end_object();
  }
  json.end_array();
}

}  // namespace

void print_version(bool json) {
  const BuildInfo& info = build_info();
  if (!json) {
    const std::string commit =
        info.commit.empty() ? "no commit known" : std::string(info.commit.substr(0, 12));
    write_out(fmt::format("bolt {} ({}{})\ncontract  {}\n", info.version, commit,
                          info.diff.empty() ? "" : " with changes", kContractId) +
              devices_text());
    return;
  }
  JsonWriter out;
  out.begin_object().member("name", "bolt").member("version", info.version);
  out.member("commit", info.commit).member("tree", info.tree).member("diff", info.diff);
  out.key("contract").begin_object();
  out.member("id", kContractId).member("sha256", kContractSha256).end_object();
  write_devices(out);
  out.member("executable_sha256", receipts::executable_sha256());
  out.key("build").begin_object();
  out.member("compiler", info.compiler).member("type", info.build_type);
  out.member("flags", info.flags).member("openssl", info.openssl);
  out.member("cuda", info.cuda == "ON").member("static", info.is_static == "ON");
  // What else was compiled in.
  out.key("libraries").begin_object().member("cli11", CLI11_VERSION);
  out.member("fmt", fmt::format("{}.{}.{}", FMT_VERSION / 10000, FMT_VERSION / 100 % 100,
                                FMT_VERSION % 100));
  out.member("glibc", fmt::format("{}.{}", __GLIBC__, __GLIBC_MINOR__));
  out.member("pcre2", fmt::format("{}.{}", PCRE2_MAJOR, PCRE2_MINOR));
  out.end_object().end_object();
  write_out(out.end_object().take() + "\n");
}

}  // namespace bolt
