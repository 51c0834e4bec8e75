"""The Hermite series of an Elementwise as CUDA text, V = Σ_j A_j(s) A_j(s') ρ^k, whose sums may have any length.

A table keeps 1/s and the A_j(s); for gradients s A_j'(s) stand behind them. series/tables.py has the mathematics.
"""

from __future__ import annotations

from .formula_text import Text

VALUE = """\
struct Terms { const real* at; long long plane; };
// Horner's rule in rho^2 over the even rows and over the odd ones; shifts[j] is log2 of the step in power to row j.
__device__ real series_pair(real K, Terms a, Terms b, int even, int odd, const unsigned char* shifts)
{
    const real rho = fmin(fmax(K * (a.at[0] * b.at[0]), (real)-1), (real)1), x = rho * rho;
    real totals[2];
#pragma unroll
    for (int parity = 0; parity < 2; parity++) {
        const int first = parity ? even : 0, count = parity ? odd : even;
        real total = 0, power = x;
        int known = 0;  // power is x^(2^known)
        for (int j = count - 1; j >= 0; j--) {
            const int step = j + 1 < count ? shifts[first + j + 1] : 0;
            if (step != known) {
                power = x;
                for (int k = 0; k < step; k++) power *= power;
                known = step;
            }
            const long long row = (first + j + 1) * a.plane;
            total = fma(total, power, a.at[row] * b.at[row]);
        }
        totals[parity] = total;
    }
    return fma(rho, totals[1], totals[0]);
}
"""

# In float64, of an image with itself.
DIAGONAL = """\
__device__ double chebyshev(const double* c, int count, double t)
{
    double b1 = 0.0, b2 = 0.0;
    for (int k = count - 1; k > 0; k--) {
        const double b = c[k] + 2.0 * t * b1 - b2;
        b2 = b1;
        b1 = b;
    }
    return c[0] + t * b1 - b2;
}
// The terms A_j(s) into a table row, and E[fn(s z)^2] returned. The series is packed as series/packed.py says.
__device__ double series_entries(double s, const double* packed, real* row, long long plane, int even, int odd)
{
    const int panels = (int)packed[0], rows = (int)packed[1], width = (int)packed[2], second = (int)packed[3];
    const int first_odd = (int)packed[5];
    const double* edges = packed + 7;
    const double* coefficients = edges + panels + 1;
    s = fmin(s, edges[panels]);  // what lies beyond is refused, once the peaks are known
    const int p = s < edges[1] ? 0 : min(ilogb(s) + 1 - (int)packed[6], panels - 1);
    const double t = (2.0 * s - edges[p] - edges[p + 1]) / (edges[p + 1] - edges[p]);
    const double q = p == 0 && packed[4] > 0.0 ? s : 1.0;
    for (int j = 0; j < even + odd; j++) {
        const int r = j < even ? j : first_odd + j - even;
        row[j * plane] = (real)(q * chebyshev(coefficients + (p * rows + r) * width, width, t));
    }
    return q * q * chebyshev(coefficients + panels * rows * width + p * second, second, t);
}
"""


# rho' rho'' times the sum of k A_j(s1) A_j(s2) rho^(k - 1); the first row of each parity has k = 0 or 1.
SLOPE = """\
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
SLOPE_DIAGONAL = """\
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

# V = E(x) + rho O(x) with x = rho^2: of each the sum, its derivative by x, and the sums with s A_j'(s) of either image.
BACK = """\
__device__ Parts series_back(real K, Terms a, Terms b, int even, int odd, const unsigned char* shifts)
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
            const int step = j + 1 < count ? shifts[start + j + 1] : 0;
            if (step != known) {
                power = x;
                its_slope = 1;
                for (int k = 0; k < step; k++) { its_slope *= 2 * power; power *= power; }
                known = step;
            }
            const long long row = (start + j + 1) * a.plane;
            const real A = a.at[row], B = b.at[row];
            slope = fma(slope, power, total * its_slope);
            total = fma(total, power, A * B);
            first = fma(first, power, a.at[row + behind] * B);
            second = fma(second, power, A * b.at[row + behind]);
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

# The series is packed as series/packed.py says; s times a derivative by s is that by log s.
STILL = """\
struct Panel { int p; double t, per_s; bool power; };
__device__ Panel panel_of(double s, const double* packed)
{
    const int panels = (int)packed[0];
    const double* edges = packed + 7;
    s = fmin(s, edges[panels]);
    const int p = s < edges[1] ? 0 : min(ilogb(s) + 1 - (int)packed[6], panels - 1);
    const double width = edges[p + 1] - edges[p];
    return {p, (2.0 * s - edges[p] - edges[p + 1]) / width, 2.0 * s / width, p == 0 && packed[4] > 0.0};
}
// A Chebyshev sum by Clenshaw's rule, and its derivative.
__device__ void chebyshev_both(const double* c, int count, double t, double& value, double& slope)
{
    double b1 = 0.0, b2 = 0.0, d1 = 0.0, d2 = 0.0;
    for (int k = count - 1; k > 0; k--) {
        const double d = 2.0 * b1 + 2.0 * t * d1 - d2, b = c[k] + 2.0 * t * b1 - b2;
        d2 = d1; d1 = d; b2 = b1; b1 = b;
    }
    value = c[0] + t * b1 - b2;
    slope = b1 + t * d1 - d2;
}
// s A_j'(s) into a table, behind the A_j(s).
__device__ double series_behind(double s, const double* packed, double* row, long long plane, int even, int odd)
{
    const int rows = (int)packed[1], width = (int)packed[2], first_odd = (int)packed[5];
    const double* coefficients = packed + 7 + (int)packed[0] + 1;
    const Panel here = panel_of(s, packed);
    for (int j = 0; j < even + odd; j++) {
        const int r = j < even ? j : first_odd + j - even;
        double value, slope;
        chebyshev_both(coefficients + (here.p * rows + r) * width, width, here.t, value, slope);
        row[j * plane] = here.power ? s * (value + slope * here.per_s) : slope * here.per_s;
    }
    return 0.0;
}
__device__ Still series_still(double K, double unit, const double* packed)
{
    const int panels = (int)packed[0], rows = (int)packed[1], width = (int)packed[2], second = (int)packed[3];
    const double s = sqrt(unit * K);
    const Panel here = panel_of(s, packed);
    double value, slope;
    chebyshev_both(packed + 7 + panels + 1 + panels * rows * width + here.p * second, second, here.t, value, slope);
    const double q = here.power ? s * s : 1.0, half = K > 0.0 ? 0.5 / K : 0.0;  // 1/2K is d log s / dK
    return {half * q * ((here.power ? 2.0 * value : 0.0) + slope * here.per_s), half, q * value, 0.0};
}
"""

# One argument for each image: where its numbers begin, `plane` apart. Behind 1/s stand the series' terms, which
# `series_entries` leaves.
SERIES_TEXT = Text(
    planes=1,
    pair="series_pair({K}, {args}, {even}, {odd}, shifts + {shifts})",
    entries=("({K} > 0.0 ? 1.0 / sqrt({K}) : 0.0)",),
    diagonal="series_entries(sqrt({unit} * {K}), panels + op.series, row + op.offset + op.plane + slot(e, op.width), "
    "op.plane, {even}, {odd})",
    slope="series_slope({K}, {args}, {even}, {odd}, shifts + {shifts})",
    slope_diagonal="({K} > 0.0 ? series_variance_slope(sqrt({unit} * {K}), panels + op.series, {even}, {odd}, "
    "shifts + {shifts}) / {K} : 0.0)",
    back="series_back({K}, {args}, {even}, {odd}, shifts + {shifts})",
    still="series_still({K}, {unit}, panels + op.series)",
)


def series_functions(slopes: bool) -> str:
    return VALUE + DIAGONAL + (SLOPE + SLOPE_DIAGONAL if slopes else "")
