"""The Hermite series of an Elementwise as CUDA text, V = Σ_j A_j(s) A_j(s') ρ^k, whose sums may have any length.

A table keeps 1/s and the A_j(s); for gradients s A_j'(s) stand behind them. series/tables.py has the mathematics, and
series/packed.py says how a series is packed.
"""

from __future__ import annotations

from .formula_writer import Text

# V = E(x) + rho O(x) with x = rho^2: Horner's rule over the even rows and over the odd ones, for each sum, its
# derivative by x, and the sums with s A_j'(s) of either image. What is not asked for is left out.
PAIR = """\
struct Terms { const real* at; long long plane; };
// log2 of the step in power to row j is shifts[-1 - j] of the even rows and shifts[j] of the odd ones.
template <bool SLOPE, bool SHARES>
__device__ Parts series(real K, Terms a, Terms b, int even, int odd, const unsigned char* shifts)
{
    const real r = a.at[0] * b.at[0], rho = fmin(fmax(K * r, (real)-1), (real)1), x = rho * rho;
    const long long behind = (long long)(even + odd) * a.plane;
    real totals[2], slopes[2], firsts[2], seconds[2];
#pragma unroll
    for (int parity = 0; parity < 2; parity++) {
        const int start = parity ? even : 0, count = parity ? odd : even;
        real total = 0, slope = 0, first = 0, second = 0, power = x, its_slope = 1;
        int known = 0;  // power is x^(2^known)
        for (int j = count - 1; j >= 0; j--) {
            const int step = j + 1 < count ? shifts[parity ? j + 1 : -2 - j] : 0;
            if (step != known) {
                power = x;
                its_slope = 1;
                for (int k = 0; k < step; k++) { its_slope *= 2 * power; power *= power; }
                known = step;
            }
            const long long row = (start + j + 1) * a.plane;
            const real A = a.at[row], B = b.at[row];
            if (SLOPE) slope = fma(slope, power, total * its_slope);
            total = fma(total, power, A * B);
            if (SHARES) first = fma(first, power, a.at[row + behind] * B);
            if (SHARES) second = fma(second, power, A * b.at[row + behind]);
        }
        totals[parity] = total;
        slopes[parity] = slope;
        firsts[parity] = first;
        seconds[parity] = second;
    }
    const real by_rho = fma(2 * rho, fma(slopes[1], rho, slopes[0]), totals[1]), turned = rho * by_rho;
    return {r * by_rho, fma(rho, firsts[1], firsts[0]) - turned, fma(rho, seconds[1], seconds[0]) - turned,
            fma(rho, totals[1], totals[0]), (real)0};
}
"""

# In float64, of an image with itself.
OWN = """\
// A packed series at s: the panel that s lies in, its place t there, and s times the derivative of t by s.
struct Panel {
    const double *row, *second;
    int first_odd, width, terms;
    double t, per_s;
    bool power;
    __device__ Panel(double& s, const double* packed)
    {
        const int panels = (int)packed[0], rows = (int)packed[1];
        const double* edges = packed + 7;
        s = fmin(s, edges[panels]);  // what lies beyond is refused, once the peaks are known
        const int p = s < edges[1] ? 0 : min(ilogb(s) + 1 - (int)packed[6], panels - 1);
        const double length = edges[p + 1] - edges[p];
        width = (int)packed[2];
        terms = (int)packed[3];
        first_odd = (int)packed[5];
        row = edges + panels + 1 + p * rows * width;
        second = edges + panels + 1 + panels * rows * width + p * terms;
        t = (2.0 * s - edges[p] - edges[p + 1]) / length;
        per_s = 2.0 * s / length;
        power = p == 0 && packed[4] > 0.0;
    }
};
// A Chebyshev sum by Clenshaw's rule, and its derivative.
struct Sum { double value, slope; };
__device__ Sum chebyshev(const double* c, int count, double t)
{
    double b1 = 0.0, b2 = 0.0, d1 = 0.0, d2 = 0.0;
    for (int k = count - 1; k > 0; k--) {
        const double d = 2.0 * b1 + 2.0 * t * d1 - d2, b = c[k] + 2.0 * t * b1 - b2;
        d2 = d1; d1 = d; b2 = b1; b1 = b;
    }
    return {c[0] + t * b1 - b2, b1 + t * d1 - d2};
}
// A_j(s), and s A_j'(s): s times a derivative by s is that by log s.
__device__ Sum series_row(const Panel& here, double s, int j, int even)
{
    const Sum sum = chebyshev(here.row + (j < even ? j : here.first_odd + j - even) * here.width, here.width, here.t);
    const double slope = sum.slope * here.per_s;
    if (here.power) return {s * sum.value, s * (sum.value + slope)};
    return {sum.value, slope};
}
// The terms A_j(s) into a table and, where it has them, s A_j'(s) behind; E[fn(s z)^2] is returned.
__device__ double series_entries(double s, const double* packed, double* row, long long plane, int even, int odd)
{
    const Panel here(s, packed);
    for (int j = 0; j < even + odd; j++) {
        const Sum term = series_row(here, s, j, even);
        row[j * plane] = term.value;
        if (BEHIND) row[(even + odd + j) * plane] = term.slope;
    }
    return (here.power ? s * s : 1.0) * chebyshev(here.second, here.terms, here.t).value;
}
// The sum of k A_j(s)^2.
__device__ double series_variance_slope(double s, const double* packed, int even, int odd, const unsigned char* shifts)
{
    const Panel here(s, packed);
    double total = 0.0;
    int k = 0;
    for (int j = 0; j < even + odd; j++) {
        k = j == even ? 1 : j == 0 ? 0 : k + (2 << shifts[j < even ? -1 - j : j - even]);
        const double A = series_row(here, s, j, even).value;
        total += k * A * A;
    }
    return total;
}
__device__ Still series_still(double K, double unit, const double* packed)
{
    double s = sqrt(unit * K);
    const Panel here(s, packed);
    const Sum sum = chebyshev(here.second, here.terms, here.t);
    const double q = here.power ? s * s : 1.0, half = K > 0.0 ? 0.5 / K : 0.0;  // 1/2K is d log s / dK
    return {half * q * ((here.power ? 2.0 * sum.value : 0.0) + sum.slope * here.per_s), half, q * sum.value, 0.0};
}
"""

# One argument for each image: where its numbers begin, `plane` apart. Behind 1/s stand the series' terms, which
# `series_entries` leaves.
_ARGUMENTS = "({K}, {args}, {even}, {odd}, shifts + {shifts})"
SERIES_TEXT = Text(
    planes=1,
    pair=f"series<false, false>{_ARGUMENTS}.value",
    entries=("({K} > 0.0 ? 1.0 / sqrt({K}) : 0.0)",),
    diagonal="series_entries(sqrt({unit} * {K}), panels + op.series, mine + op.whole, op.whole, {even}, {odd})",
    slope=f"series<true, false>{_ARGUMENTS}.slope",
    slope_diagonal="({K} > 0.0 ? series_variance_slope(sqrt({unit} * {K}), panels + op.series, {even}, {odd}, "
    "shifts + {shifts}) / {K} : 0.0)",
    parts=f"series<true, true>{_ARGUMENTS}",
    still="series_still({K}, {unit}, panels + op.series)",
)


def series_functions(gradients: bool) -> str:
    return PAIR + OWN.replace("BEHIND", str(gradients).lower())
