"""Derive the polynomials of kernel/engines/polynomials.py: `python tools/derive_polynomials.py` (needs mpmath).

Most are interpolants at Chebyshev points, within a factor of two of the best approximation, computed with 40 digits.
The functions of ReLU and the acos on GPUs are minimax polynomials by Remez' algorithm: g, in the pair loop, for the
error of R itself, u^1.5 |g − ĝ|, and h for the error of θ, u^0.5 |h − ĥ|.
Prints the table and the error of each polynomial in exact arithmetic.
"""

import mpmath as mp

mp.mp.dps = 40


def relu_g(u):
    """2A/p = max(c, 0) + u^1.5 g(u) with u = 1 − |c|."""
    if u == 0:
        return 2 * mp.sqrt(2) / (3 * mp.pi)
    t = mp.acos(1 - u)
    return (mp.sin(t) - t * mp.cos(t)) / (mp.pi * u ** mp.mpf("1.5"))


def acos_h(v):
    """acos(1 − v) = √v h(v)."""
    return mp.sqrt(2) if v == 0 else mp.acos(1 - v) / mp.sqrt(v)


def relu_h(u):
    """θ/π = √u h(u) with u = 1 − |c|, θ = acos |c|: the slope of R is 1 − θ/π or θ/π."""
    return acos_h(u) / mp.pi


def asin_s(w):
    """asin(x) = x s(x²)."""
    return mp.mpf(1) if w == 0 else mp.asin(mp.sqrt(w)) / mp.sqrt(w)


def exp_r(r):
    return mp.exp(r)


def expm1_y(y):
    """1 − e^(−y) = y e(y)."""
    return mp.mpf(1) if y == 0 else -mp.expm1(-y) / y


def interpolate(f, a, b, degree):
    n = degree + 1
    nodes = [(a + b) / 2 + (b - a) / 2 * mp.cos(mp.pi * (2 * i + 1) / (2 * n)) for i in range(n)]
    matrix = mp.matrix(n, n)
    for i, x in enumerate(nodes):
        for k in range(n):
            matrix[i, k] = x**k
    return list(mp.lu_solve(matrix, mp.matrix([f(x) for x in nodes])))


def best(f, weight, a, b, degree):
    """Minimise max weight(x) |f(x) − polynomial(x)| on [a, b] by exchanging the extrema of the error."""
    n = degree + 2
    nodes = [(a + b) / 2 - (b - a) / 2 * mp.cos(mp.pi * i / (n - 1)) for i in range(n)]
    grid = [a + (b - a) * (1 - mp.cos(mp.pi * i / 3000)) / 2 for i in range(3001)]
    for _ in range(12):
        matrix = mp.matrix(n, n)
        for i, x in enumerate(nodes):
            for k in range(n - 1):
                matrix[i, k] = x**k
            matrix[i, n - 1] = (-1) ** i / weight(x)
        c = list(mp.lu_solve(matrix, mp.matrix([f(x) for x in nodes])))[:-1]
        error = [weight(x) * (mp.polyval(c[::-1], x) - f(x)) for x in grid]
        nodes, sign = [], 0
        for x, e in zip(grid, error, strict=True):
            if mp.sign(e) != sign and e != 0:
                nodes.append((abs(e), x))
                sign = mp.sign(e)
            elif nodes and abs(e) > nodes[-1][0]:
                nodes[-1] = (abs(e), x)
        while len(nodes) > n:
            nodes.pop(0 if nodes[0][0] < nodes[-1][0] else -1)
        nodes = [x for _, x in nodes]
    return c, max(map(abs, error))


HALF_LN2 = mp.log(2) / 2
CASES = [
    ("ACOS_H", acos_h, 0, 1, 7, 15),
    ("ASIN_S", asin_s, 0, mp.mpf(1) / 4, 5, 11),
    ("EXP_R", exp_r, -HALF_LN2, HALF_LN2, 6, 10),
    ("EXPM1_Y", expm1_y, 0, mp.mpf(7) / 10, 6, 10),
]
MINIMAX = [
    ("RELU_G", 32, 4, relu_g, "1.5", "R/p"),
    ("RELU_G", 64, 12, relu_g, "1.5", "R/p"),
    ("RELU_H", 32, 6, relu_h, "0.5", "θ/π"),
    ("RELU_H", 64, 16, relu_h, "0.5", "θ/π"),
    ("CUDA_G", 32, 4, relu_g, "1.5", "R/p"),
    ("CUDA_G", 64, 13, relu_g, "1.5", "R/p"),
    ("CUDA_H", 32, 6, acos_h, "0.5", "θ"),
    ("CUDA_H", 64, 16, acos_h, "0.5", "θ"),
]

if __name__ == "__main__":
    for name, bits, degree, f, power, what in MINIMAX:
        c, error = best(f, lambda u, power=power: u ** mp.mpf(power), mp.mpf("1e-5"), mp.mpf(1), degree)
        print(f"# degree {degree}, error of {what} {mp.nstr(error, 2)}")
        print(f"{name}_{bits} = ({', '.join(repr(float(x)) for x in c)})")
    for name, f, a, b, *degrees in CASES:
        a, b = mp.mpf(a), mp.mpf(b)
        for bits, degree in zip((32, 64), degrees, strict=True):
            c = interpolate(f, a, b, degree)
            grid = [a + (b - a) * i / 400 for i in range(401)]
            error = max(abs(mp.polyval(c[::-1], x) / f(x) - 1) for x in grid)
            print(f"# degree {degree}, relative error {mp.nstr(error, 2)}")
            print(f"{name}_{bits} = ({', '.join(repr(float(x)) for x in c)})")
