"""The slopes f' = ∂f/∂K of the nonlinearities as CUDA device functions, beside the formulas of math.py.

Only programs of a tangent kernel have them in their text.
"""

from __future__ import annotations

import math

from cnngp.kernel.engines.polynomials import CUDA_H_32, CUDA_H_64

from .math import horner, literal


def slope_formulas(dtype: str) -> str:
    """f' = ∂f/∂K of the nonlinearities, for tangent kernels, as program/formulas.py lists it.

    Near correlation one the ReLU's slope has that of a square root, so u is what decides: it is made as for R.
    """
    h = horner(tuple(c / math.pi for c in (CUDA_H_32 if dtype == "float" else CUDA_H_64)), dtype)
    zero, one, two, three, quarter = (literal(x, dtype) for x in (0.0, 1.0, 2.0, 3.0, 0.25))
    over2pi = literal(0.15915494309189535, dtype)
    return f"""\
// (pi - theta) / pi. Beside R the compiler finds that they share u and its root.
__device__ __forceinline__ real relu_nonneg_slope(real K, real s1, real s2) {{
    const real u = clamp01(fma(-K, reciprocal(product(s1, s2)), {one}));
    return fma(-root(u), {h}, {one});
}}
__device__ __forceinline__ real relu_slope(real K, real s1, real s2) {{
    const real u = clamp01(fma(-fabs(K), reciprocal(product(s1, s2)), {one})), t = root(u) * ({h});
    return K < {zero} ? t : {one} - t;
}}
// a1 a2 / sqrt(1 - r^2); with d = 1 / (1 + 2 K11) rounding cannot take 1 - r^2 below d1 + d2 - d1 d2
__device__ __forceinline__ real arcsine_slope(real K, real a1, real a2, real unit) {{
    const real a = a1 * a2, r = fmin(fabs(K) * a, {one}), over = {one} / ({two} * unit);
    const real d1 = a1 * a1 * over, d2 = a2 * a2 * over;
    return a / sqrt(fmax(({one} - r) * ({one} + r), fma(-d1, d2, d1 + d2)));
}}
__device__ __forceinline__ real gelu_slope(real K, real s1, real s2, real a1, real a2) {{
    const real p = s1 * s2, a = a1 * a2, r = K * a, d1 = a1 * a1, d2 = a2 * a2, k = fabs(K);
    const real q2 = fma(-d1, d2, d1 + d2) + fmax((p - k) * a, {zero}) * ((p + k) * a);
    const real arc = asin(fmin(fmax(r, -{one}), {one}));
    const real rest = r / sqrt(q2) * (fma(s1, s1, s2 * s2) + {three} + r * r / q2) * (a * a);
    return fma({over2pi}, arc + rest, {quarter});
}}
"""


# rho' rho'' times the sum of k A_j(s1) A_j(s2) rho^(k - 1); the first row of each parity has k = 0 or 1.
SERIES_SLOPE = """\
__device__ real series_slope(real K, Terms a, Terms b, int even, int odd, const unsigned char* shifts)
{
    const real r = a.at[0] * b.at[0], rho = fmin(fmax(K * r, (real)-1), (real)1), x = rho * rho;
    real totals[2];
#pragma unroll
    for (int parity = 0; parity < 2; parity++) {
        const int first = parity ? even : 0, count = parity ? odd : even, least = 1 - parity;
        int k = parity;
        for (int j = 1; j < count; j++) k += 2 << shifts[first + j];
        real total = 0, power = x;
        int known = 0;  // power is x^(2^known)
        for (int j = count - 1; j >= least; j--) {
            const int step = j + 1 < count ? shifts[first + j + 1] : 0;
            if (step != known) {
                power = x;
                for (int b = 0; b < step; b++) power *= power;
                known = step;
            }
            const long long row = (first + j + 1) * a.plane;
            total = fma(total, power, (real)k * (a.at[row] * b.at[row]));
            k -= 2 << shifts[first + j];
        }
        if (least && count > 1) {  // of the second row x^(n - 1) is left, with n a power of two
            power = x;
            for (int b = 0; b < shifts[first + 1]; b++) { total *= power; power *= power; }
        }
        totals[parity] = total;
    }
    return r * fma(rho, totals[0], totals[1]);
}
"""

# In float64, of one image with itself.
SERIES_SLOPE_DIAGONAL = """\
// The sum of k A_j(s)^2.
__device__ double series_variance_slope(double s, const double* packed, int even, int odd, const unsigned char* shifts)
{
    const int panels = (int)packed[0], rows = (int)packed[1], width = (int)packed[2], first_odd = (int)packed[5];
    const double* edges = packed + 7;
    const double* coefficients = edges + panels + 1;
    s = fmin(s, edges[panels]);
    const int p = s < edges[1] ? 0 : min(ilogb(s) + 1 - (int)packed[6], panels - 1);
    const double t = (2.0 * s - edges[p] - edges[p + 1]) / (edges[p + 1] - edges[p]);
    const double q = p == 0 && packed[4] > 0.0 ? s : 1.0;
    double total = 0.0;
    int k = 0;
    for (int j = 0; j < even + odd; j++) {
        k = j == even ? 1 : j == 0 ? 0 : k + (2 << shifts[j]);
        const int r = j < even ? j : first_odd + j - even;
        const double A = q * chebyshev(coefficients + (p * rows + r) * width, width, t);
        total += k * A * A;
    }
    return total;
}
"""

SLOPE_DIAGONAL_FORMULAS = """\
__device__ double gelu_variance_slope(double K) {
    const double r = K / (1.0 + K), q2 = (1.0 + 2.0 * K) / ((1.0 + K) * (1.0 + K));
    const double rest = r / sqrt(q2) * (3.0 + 2.0 * K + r * r / q2) / ((1.0 + K) * (1.0 + K));
    return 0.25 + 0.15915494309189535 * (asin(r) + rest);
}
"""
