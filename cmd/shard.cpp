// I/N, and Slurm's variables (srun(1), sbatch(1)).
#include "cmd/shard.h"

#include <fmt/format.h>

#include <cstdlib>
#include <limits>
#include <optional>

#include "cmd/values.h"

namespace bolt {
namespace {

constexpr std::int64_t kShardsMax = 1 << 20;

std::optional<std::int64_t> variable(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return std::nullopt;
  return parse_integer(name, text, 0, std::numeric_limits<std::int32_t>::max());
}

std::int64_t needed(std::string_view option, const char* name) {
  if (const auto value = variable(name)) return *value;
  throw Error(Exit::usage,
              fmt::format("{}: slurm needs {}, which is not set: start it by srun", option, name));
}

Shard slurm_shard(std::string_view option) {
  const std::int64_t task = needed(option, "SLURM_PROCID"),
                     n_tasks = needed(option, "SLURM_NTASKS");
  Shard shard{task + 1, n_tasks};
  if (const auto id = variable("SLURM_ARRAY_TASK_ID")) {
    // Each of the array's jobs holds n_tasks; their ids need be evenly spaced.
    const std::int64_t count = needed(option, "SLURM_ARRAY_TASK_COUNT"),
                       first = needed(option, "SLURM_ARRAY_TASK_MIN"),
                       last = needed(option, "SLURM_ARRAY_TASK_MAX");
    const std::int64_t step = count > 1 ? (last - first) / (count - 1) : 1;
    if (step < 1 || first + step * (count - 1) != last || (*id - first) % step != 0) {
      throw Error(Exit::usage,
                  fmt::format("{}: the array's ids are not evenly spaced; give I/N", option));
    }
    shard = {(*id - first) / step * n_tasks + task + 1, count * n_tasks};
  }
  if (shard.count < 1 || shard.index > shard.count) {
    throw Error(Exit::usage, fmt::format("{}: Slurm's variables name task {} of {}", option,
                                         shard.index, shard.count));
  }
  return shard;
}

}  // namespace

Shard parse_shard(std::string_view option, std::string_view text) {
  if (text == "slurm") return slurm_shard(option);
  const std::size_t slash = text.find('/');
  if (slash == std::string_view::npos) {
    throw Error(Exit::usage, fmt::format("{}: {} is neither I/N, as 2/8, nor slurm", option, text));
  }
  Shard shard;
  shard.count = parse_integer(option, text.substr(slash + 1), 1, kShardsMax);
  shard.index = parse_integer(option, text.substr(0, slash), 1, shard.count);
  return shard;
}

}  // namespace bolt
