// --shard: which of a batch's lines are this process's.
#pragma once

#include <string>
#include <string_view>

#include "cmd/line_source.h"

namespace bolt {

// "2/8", or "slurm": the place among a job's tasks that Slurm's variables give, of a job array's
// tasks together. Error(usage) naming what is wrong or missing.
Shard parse_shard(std::string_view option, std::string_view text);

}  // namespace bolt
