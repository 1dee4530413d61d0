// Drafts that are right at a chosen rate, for benchmarks: the reply is known from an earlier run,
// and each draft is its next id with probability `rate`, else another, and claims as much: the
// depth rule's estimate of its chance is `rate`. The head's levels run and cost what they cost;
// their answers are not used.
#pragma once

#include <memory>

#include "core/engine/drafter.h"

namespace bolt {

// Of a request that has a script.
std::unique_ptr<Drafter> make_scripted_drafter(const Request& request, const Model& model,
                                               CostSource costs);

}  // namespace bolt
