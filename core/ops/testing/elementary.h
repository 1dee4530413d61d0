// The elementary functions over arrays, as each build of them computes: what the exhaustive test
// runs.
#pragma once

namespace bolt {

enum class Elementary { exp, log, sigmoid, softplus, rsqrt, silu, relu2 };
inline constexpr int kElementary = 7;
inline constexpr const char* kElementaryNames[kElementary] = {
    "exp", "log", "sigmoid", "softplus", "rsqrt", "silu", "relu2"};

// y[i] = f(x[i]); n a multiple of 16. rsqrt and relu2 have no vector form: there they are scalar.
using ApplyElementary = void (*)(Elementary f, const float* x, float* y, int n);
void apply_portable(Elementary f, const float* x, float* y, int n);
void apply_fma(Elementary f, const float* x, float* y, int n);
void apply_avx2(Elementary f, const float* x, float* y, int n);
void apply_avx512(Elementary f, const float* x, float* y, int n);

}  // namespace bolt
