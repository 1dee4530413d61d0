// Opening ranks on this machine: the CPU's threads shared out among them, or GPUs.
#pragma once

#include <memory>

#include "core/engine/engine.h"
#include "core/engine/ranks.h"

namespace bolt {

// The CPU as a backend, with the weights where they are mapped.
Backend open_host(const Graph& graph, int n_threads, Isa isa);

// options.n_ranks of them, at least two. Throws Error(usage) where they do not divide the model.
std::unique_ptr<Ranks> open_ranks(const Graph& graph, const EngineOptions& options, int n_threads);

// What each rank may count on having free: those that share a memory share that. 0: unknown.
std::uint64_t free_bytes_of(const Ranks& ranks, const EngineOptions& options);

// The ranks as --device has them, "cpu:2" or "cuda:0,1".
std::string rank_names(const EngineOptions& options);

}  // namespace bolt
