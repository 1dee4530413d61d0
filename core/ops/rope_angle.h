// Sine and cosine of a rotary angle: plain double arithmetic in one order, so that host and device
// rotate alike. Angles are positions times at most 1: |angle| < 2^20.
#pragma once

#include "core/base/exact_math.h"

namespace bolt {

// angle = n pi/2 + r with |r| <= pi/4 (n by adding 1.5 * 2^52, pi/2 in two parts), then the
// polynomials of fdlibm's kernels, rounded once.
BOLT_EXACT void rope_angle(float angle, float* sine, float* cosine) {
  const auto x = static_cast<double>(angle);
  const double n = (x * 0.63661977236758134308 + 6755399441055744.0) - 6755399441055744.0;
  const double r = (x - n * 1.57079632673412561417) - n * 6.07710050650619224932e-11;
  const double z = r * r;
  double s = 1.58969099521155010221e-10;
  s = s * z - 2.50507602534068634195e-08;
  s = s * z + 2.75573137070700676789e-06;
  s = s * z - 1.98412698298579493134e-04;
  s = s * z + 8.33333333332248946124e-03;
  s = s * z - 1.66666666666666324348e-01;
  s = r + r * z * s;
  double c = -1.13596475577881948265e-11;
  c = c * z + 2.08757232129817482790e-09;
  c = c * z - 2.75573143513906633035e-07;
  c = c * z + 2.48015872894767294178e-05;
  c = c * z - 1.38888888888741095749e-03;
  c = c * z + 4.16666666666666019037e-02;
  c = (1.0 - 0.5 * z) + z * z * c;
  const int quarter = static_cast<int>(n) & 3;
  const double sin_part = quarter & 1 ? c : s, cos_part = quarter & 1 ? s : c;
  *sine = static_cast<float>(quarter & 2 ? -sin_part : sin_part);
  *cosine = static_cast<float>(quarter == 1 || quarter == 2 ? -cos_part : cos_part);
}

}  // namespace bolt
