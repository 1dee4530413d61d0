// core/base/exact_math.h on vectors (vec.h, included before): the same steps in the same order, so
// the same bits for every input. See there for what each step is.

inline F nan_where(Mask m, F x) { return select(m, from_bits(splat(0x7fc00000)), x); }

inline F vec_exp(F x) {
  const F c = min(splat(89.0f), max(splat(-104.0f), x));  // a NaN stays one
  const F z = fma(c, splat(1.44269504088896341f), splat(12582912.0f));
  const F n = sub(z, splat(12582912.0f));
  const I i = sub(bits(z), splat(0x4B400000));
  F r = fma(n, splat(-0.693145752f), c);
  r = fma(n, splat(-1.42860677e-6f), r);
  F p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  p = add(fma(p, mul(r, r), r), splat(1.0f));
  const I a = shift_right<1>(i), b = sub(i, a);
  F y = mul(mul(p, from_bits(shift_left<23>(add(a, splat(127))))),
            from_bits(shift_left<23>(add(b, splat(127)))));
  y = zero_unless(not_mask(less(x, splat(-104.0f))), y);
  return nan_where(is_nan(x), y);
}

inline F vec_log(F x) {
  // A negative x compares as subnormal here, which is of no matter: its result is NaN.
  const Mask subnormal = less(bits(x), splat(0x00800000));
  const F scaled = select(subnormal, mul(x, splat(16777216.0f)), x);
  const I u = bits(scaled);
  const I e = bit_and(sub(u, splat(0x3f3504f3)), splat(static_cast<int>(0xff800000u)));
  const F m = from_bits(sub(u, e));
  const F f = sub(m, splat(1.0f));
  const F k = sub(to_float(shift_right<23>(e)), zero_unless(subnormal, splat(24.0f)));
  const F z = mul(f, f);
  F p = splat(7.0376836292e-2f);
  p = fma(p, f, splat(-1.1514610310e-1f));
  p = fma(p, f, splat(1.1676998740e-1f));
  p = fma(p, f, splat(-1.2420140846e-1f));
  p = fma(p, f, splat(1.4249322787e-1f));
  p = fma(p, f, splat(-1.6668057665e-1f));
  p = fma(p, f, splat(2.0000714765e-1f));
  p = fma(p, f, splat(-2.4999993993e-1f));
  p = fma(p, f, splat(3.3333331174e-1f));
  F y = mul(mul(p, f), z);
  y = fma(k, splat(-2.12194440e-4f), y);
  y = fma(z, splat(-0.5f), y);
  y = fma(k, splat(0.693359375f), add(f, y));
  y = select(equal(x, splat(0.0f)), from_bits(splat(static_cast<int>(0xff800000u))), y);
  y = select(equal(x, from_bits(splat(0x7f800000))), x, y);
  return nan_where(not_mask(less_equal(splat(0.0f), x)), y);
}

inline F vec_negate(F x) {
  return from_bits(bit_xor(bits(x), splat(static_cast<int>(0x80000000u))));
}

inline F vec_sigmoid(F x) {
  const F y = div(splat(1.0f), add(splat(1.0f), vec_exp(vec_negate(x))));
  return nan_where(is_nan(x), y);
}

inline F vec_silu(F x) {
  const F y = mul(x, vec_sigmoid(x));
  return nan_where(is_nan(y), y);
}

inline F vec_softplus(F x) {
  const F u = vec_exp(from_bits(bit_or(bits(x), splat(static_cast<int>(0x80000000u)))));  // -|x|
  const F w = add(splat(1.0f), u);
  const F l = add(vec_log(w), div(sub(u, sub(w, splat(1.0f))), w));
  const F y = add(max(x, splat(0.0f)), l);
  return nan_where(is_nan(x), y);
}
