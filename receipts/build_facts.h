// Which program is running: the executable's own bytes, the modules mapped into it, and the
// environment that could change it. What it was compiled from is the caller's to say.
#pragma once

#include <string>
#include <vector>

#include "receipts/facts.h"

namespace bolt::receipts {

// Call first thing in main: opens /proc/self/exe, so that a later rename or replacement of the file
// does not matter, and hashes it in the background (or takes the hash from the cache, keyed by
// device, inode, size, mtime and ctime, in $XDG_CACHE_HOME/bolt). Cheap and safe to call twice.
void start_build_facts();

// `compiled` holds what the build knew (commit, tree, diff, toolchain, flags, cubins); added are
// the executable's hash, which is waited for, and the modules mapped now (none in a static binary).
Build build_facts(Build compiled);

// Lower-case hex SHA-256 of the running executable; waits for the hash.
const std::string& executable_sha256();

// Lower-case hex SHA-256 of an open file, from the cache where the file's identity is in it.
std::string cached_file_sha256(int fd, const std::string& name);

// The variables a receipt records, sorted by name: in clear CUDA_VISIBLE_DEVICES,
// CUDA_FORCE_PTX_JIT, CUDA_DISABLE_PTX_JIT and NVIDIA_TF32_OVERRIDE; other CUDA_* and LD_PRELOAD,
// LD_AUDIT, CUDA_INJECTION64_PATH as digests.
std::vector<EnvEntry> environment_facts();

// Code injection (LD_PRELOAD, LD_AUDIT, CUDA_INJECTION64_PATH) is the one thing that drops the
// promise. Returns the variable's name, else empty.
std::string injected_by(const std::vector<EnvEntry>& env);

// Whether CUDA_FORCE_PTX_JIT makes the driver compile the device code itself: build.jit.
bool forces_jit(const std::vector<EnvEntry>& env);

}  // namespace bolt::receipts
