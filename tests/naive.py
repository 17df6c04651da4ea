"""Plain-loop oracle of the paper's system: as slow and as readable as the formulas.

NumPy stores the arrays and `numpy.linalg.eigh` finds eigenvectors; everything else is a loop.
Nothing here is imported from the package, so a mistake in the package cannot hide in its own test.

Two conventions that the paper leaves open:

* A reference point with fewer than d+1 points in its ball has no tangent; its projector is zero
  (its covariance has rank below d, and eigenvectors of the eigenvalue 0 would be arbitrary).
* Where no kernel mass is left, the mean and the averaged projector are NaN.
"""

import functools
import math
import struct
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np


def squared_distance(x, y):
    total = 0.0
    for k in range(len(x)):
        total += (y[k] - x[k]) ** 2
    return total


def squared_norm(x):
    total = 0.0
    for k in range(len(x)):
        total += x[k] * x[k]
    return total


def all_finite(A):
    return all(math.isfinite(value) for value in np.ravel(A))


def ball(Y, x, h):
    """Indices i with |y_i - x| <= h."""
    inside = []
    for i in range(len(Y)):
        if squared_distance(x, Y[i]) <= h * h:
            inside.append(i)
    return inside


# Local PCA (the paper's equation eq:local-cov)


def local_covariance(Y, z, h):
    """Covariance of the reference points in the ball: first the mean, then the products, over n_z - 1."""
    D = Y.shape[1]
    inside = ball(Y, z, h)
    C = np.zeros((D, D))
    if len(inside) < 2:
        return C
    mean = np.zeros(D)
    for i in inside:
        for j in range(D):
            mean[j] += Y[i, j]
    for j in range(D):
        mean[j] /= len(inside)
    for i in inside:
        for j in range(D):
            for k in range(D):
                C[j, k] += (Y[i, j] - mean[j]) * (Y[i, k] - mean[k])
    for j in range(D):
        for k in range(D):
            C[j, k] /= len(inside) - 1
    return C


def top_projector(C, d):
    """Projector V V^T, basis V (D, d) and all eigenvalues of C, the largest eigenvalue first."""
    D = len(C)
    ascending, vectors = np.linalg.eigh(C)
    eigenvalues = np.zeros(D)
    for j in range(D):
        eigenvalues[j] = ascending[D - 1 - j]
    V = np.zeros((D, d))
    for e in range(d):
        for j in range(D):
            V[j, e] = vectors[j, D - 1 - e]
    P = np.zeros((D, D))
    for j in range(D):
        for k in range(D):
            for e in range(d):
                P[j, k] += V[j, e] * V[k, e]
    return P, V, eigenvalues


def least_changes(above, order, inside):
    """Least number of changes of one row along the branches of a tree of balls, and one if the root has it.

    inside[r] says whether ball r, a leaf of the tree, has the row; other balls may have it or not. Sankoff's
    recursion: costs[b][s] is the least number below ball b if it has the row (s = 1) or has not (s = 0).
    """
    costs = {}
    for ball in order:
        costs[ball] = [0, 0]
        if ball < len(inside):
            costs[ball][0 if inside[ball] else 1] = len(order) + 1
    for ball in reversed(order):
        parent = above[ball]
        if parent < 0:
            return min(costs[ball][0], costs[ball][1] + 1)
        for state in (0, 1):
            costs[parent][state] += min(costs[ball][state], costs[ball][1 - state] + 1)
    return 0


def local_projector(Y, z, h, d):
    """P_z, the top-d projector of the covariance around z; zero with fewer than d+1 points."""
    if len(ball(Y, z, h)) < d + 1:
        return np.zeros((Y.shape[1], Y.shape[1]))
    P, _, _ = top_projector(local_covariance(Y, z, h), d)
    return P


def local_projectors(Y, h, d):
    """P_{y_i} at every reference point, (n, D, D)."""
    n, D = Y.shape
    P = np.zeros((n, D, D))
    for i in range(n):
        P[i] = local_projector(Y, Y[i], h, d)
    return P


def algorithm1(Y, z, h, d, W):
    """Algorithm 1 with a given symmetric noise matrix: the top-d projector of P_z + W."""
    noisy, _, _ = top_projector(local_projector(Y, z, h, d) + W, d)
    return noisy


# Weights, mean and averaged projector


def kernel_weight(r2_over_h2, beta):
    """(1 - r^2)_+^beta of the squared relative distance."""
    if r2_over_h2 >= 1.0:
        return 0.0
    return (1.0 - r2_over_h2) ** beta


def weighted_geometry(Y, P, x, h, beta):
    """Points in the closed ball, kernel mass S, mean b_x and averaged projector Pw_x."""
    D = Y.shape[1]
    inside = ball(Y, x, h)
    mass = 0.0
    b = np.zeros(D)
    Pw = np.zeros((D, D))
    for i in inside:
        weight = kernel_weight(squared_distance(x, Y[i]) / (h * h), beta)
        mass += weight
        for j in range(D):
            b[j] += weight * Y[i, j]
            for k in range(D):
                Pw[j, k] += weight * P[i, j, k]
    for j in range(D):
        b[j] = b[j] / mass if mass > 0.0 else math.nan
        for k in range(D):
            Pw[j, k] = Pw[j, k] / mass if mass > 0.0 else math.nan
    return len(inside), mass, b, Pw


def normal_part(P, v):
    """(I - P) v."""
    D = len(v)
    out = np.zeros(D)
    for j in range(D):
        for k in range(D):
            identity = 1.0 if j == k else 0.0
            out[j] += (identity - P[j, k]) * v[k]
    return out


# Nonprivate-MD and Algorithm 2


def denoise(Y, Z, h, d, steps, beta, noise=None):
    """Nonprivate-MD, or Algorithm 2 with given noise (Wp (m, T, D, D), Wm (m, T, D)).

    Returns the points and a status per query; "no_neighbor" and "failed" return the query as it came.
    """
    P = local_projectors(Y, h, d)
    out = np.array(Z, dtype=float)
    statuses = []
    for q in range(len(Z)):
        x = np.array(Z[q], dtype=float)
        status = "ok"
        for t in range(steps):
            count, mass, b, Pw = weighted_geometry(Y, P, x, h, beta)
            if count < d + 1:
                status = "no_neighbor" if t == 0 else "failed"
                break
            if noise is not None:
                Pw = Pw + noise[0][q, t]
                b = b + noise[1][q, t]
            if mass == 0.0 or not all_finite(Pw) or not all_finite(b):
                status = "failed"
                break
            projector, _, _ = top_projector(Pw, d)
            x = x - normal_part(projector, x - b)
            if not all_finite(x):
                status = "failed"
                break
        if status == "ok":
            out[q] = x
        statuses.append(status)
    return out, statuses


# Gradient descent on |f(x)|^2


def residual(Y, P, x, h, beta):
    """f(x) = (I - Pw_x)(x - b_x), with the averaged projector as it is (not truncated to rank d)."""
    _, _, b, Pw = weighted_geometry(Y, P, x, h, beta)
    return normal_part(Pw, x - b)


def residual_gradient(Y, P, x, h, beta):
    r"""Gradient of F(x) = |f(x)|^2 / 2; the weights in Pw_x and in b_x depend on x and are differentiated.

    With k_i the kernel values, S their sum, a_i = k_i / S:

        dk_i/dx_l   = -2 beta (1 - r_i^2)^(beta - 1) (x - y_i)_l / h^2
        da_i/dx_l   = (dk_i/dx_l - a_i dS/dx_l) / S
        df_j/dx_l   = (I - Pw)_jl - sum_k (dPw_jk/dx_l) (x - b)_k - sum_k (I - Pw)_jk db_k/dx_l
        dF/dx_l     = sum_j f_j df_j/dx_l
    """
    D = len(x)
    inside = ball(Y, x, h)
    _, mass, b, Pw = weighted_geometry(Y, P, x, h, beta)
    f = normal_part(Pw, x - b)
    gradient = np.zeros(D)
    for l in range(D):  # noqa: E741  (the index of the formula)
        dk = []
        dS = 0.0
        for i in inside:
            r2 = squared_distance(x, Y[i]) / (h * h)
            slope = (1.0 - r2) ** (beta - 1.0) if r2 < 1.0 else 0.0
            dk.append(-2.0 * beta * slope * (x[l] - Y[i, l]) / (h * h))
            dS += dk[-1]
        db = np.zeros(D)
        dPw = np.zeros((D, D))
        for position, i in enumerate(inside):
            a = kernel_weight(squared_distance(x, Y[i]) / (h * h), beta) / mass
            da = (dk[position] - a * dS) / mass
            for j in range(D):
                db[j] += da * Y[i, j]
                for k in range(D):
                    dPw[j, k] += da * P[i, j, k]
        for j in range(D):
            df = (1.0 if j == l else 0.0) - Pw[j, l]
            for k in range(D):
                identity = 1.0 if j == k else 0.0
                df -= dPw[j, k] * (x[k] - b[k])
                df -= (identity - Pw[j, k]) * db[k]
            gradient[l] += f[j] * df
    return gradient


def objective(Y, P, x, h, d, beta):
    """F(x) = |f(x)|^2 / 2; infinite where x is not acceptable (fewer than d+1 points, no mass)."""
    if not all_finite(x):
        return math.inf
    count, mass, _, _ = weighted_geometry(Y, P, x, h, beta)
    if count < d + 1 or mass == 0.0:
        return math.inf
    return squared_norm(residual(Y, P, x, h, beta)) / 2.0


def gradient_descent(Y, Z, h, d, steps, beta, tol, shrink=0.5):
    """Gradient descent on F = |f|^2 / 2 with step halving (Armijo, constant 1e-4, eta = 1 at first).

    Stops when |f(x)| <= tol h, after `steps` accepted steps, or when 30 halvings find no decrease.
    The averaged projector has rank above d, so f keeps a small tangential part: the normal part is gone after
    a few steps, then x creeps along the manifold. A tol below about 5e-3 can take hundreds of steps.
    Returns the points, a status per query and the number of accepted steps per query.
    """
    P = local_projectors(Y, h, d)
    out = np.array(Z, dtype=float)
    statuses = []
    iterations = []
    for q in range(len(Z)):
        x = np.array(Z[q], dtype=float)
        taken = 0
        if len(ball(Y, x, h)) < d + 1:
            statuses.append("no_neighbor")
            iterations.append(taken)
            continue
        F = objective(Y, P, x, h, d, beta)
        status = "ok" if math.isfinite(F) else "failed"
        while status == "ok" and taken < steps and math.sqrt(2.0 * F) > tol * h:
            g = residual_gradient(Y, P, x, h, beta)
            if not all_finite(g):
                status = "failed"
                break
            eta = 1.0
            accepted = False
            for _ in range(31):  # eta = 1, then at most 30 halvings
                trial = x - eta * g
                F_trial = objective(Y, P, trial, h, d, beta)
                if F_trial <= F - 1e-4 * eta * squared_norm(g):
                    accepted = True
                    break
                eta *= shrink
            if not accepted:
                break
            x = trial
            F = F_trial
            taken += 1
        if status == "ok":
            out[q] = x
        statuses.append(status)
        iterations.append(taken)
    return out, statuses, iterations


def paper_bandwidth(n, d, sigma):
    """h = max(5 (ln n / n)^(1/(d+1)), 2 sqrt(sigma))."""
    return max(5.0 * (math.log(n) / n) ** (1.0 / (d + 1)), 2.0 * math.sqrt(sigma))


# Exact rounded normal samples (Karney's algorithm N on a lattice 32 times finer)

CELLS = 32


@functools.cache
def cell_thresholds(bits):
    """floor(2^bits P(c <= i)) for i = 0, 1, ..., 599, where P(c = i) is proportional to exp(-i^2 / 2048)."""
    with localcontext() as context:
        context.prec = 250
        weights = [(-Decimal(i * i) / (2 * CELLS**2)).exp() for i in range(1200)]
        total = sum(weights)
        below = Decimal(0)
        thresholds = []
        for weight in weights[:600]:
            below += weight
            thresholds.append(math.floor(below / total * 2**bits))
    return thresholds


class Digits:
    """Random digits of `digit_bits` bits from words[at:], the highest bits of each word first."""

    def __init__(self, words, at, digit_bits):
        self.words, self.at, self.digit_bits, self.bits = words, at, digit_bits, ""

    def number(self, width):
        while len(self.bits) < width:
            if self.at == len(self.words):
                raise EOFError
            self.bits += f"{int(self.words[self.at]):064b}"
            self.at += 1
        number = int(self.bits[:width], 2)
        self.bits = self.bits[width:]
        return number

    def fresh_is_below(self, other):
        """Draw a uniform, digit by digit, until it differs from `other`; extend that, too, where needed."""
        fresh = []
        while fresh == other[: len(fresh)]:
            if len(other) == len(fresh):
                other.append(self.number(self.digit_bits))
            fresh.append(self.number(self.digit_bits))
        return fresh < other[: len(fresh)], fresh


def normal_attempt(words, at, deviation, guide_bits=13, digit_bits=13):
    """One attempt from words[at]: the sample, or None if it is rejected, and the next word.

    Raises EOFError where the words end.
    """
    first = f"{int(words[at]):064b}"
    guide, choice, sign, fraction = first[:guide_bits], int(first[13:24], 2), first[24], first[25:]
    more = Digits(words, at + 1, digit_bits)

    precision = guide_bits + digit_bits * math.ceil((256 - guide_bits) / digit_bits)
    thresholds = cell_thresholds(precision)
    uniform, known = int(guide, 2), guide_bits
    c = 0
    while True:
        while uniform == thresholds[c] >> (precision - known):
            uniform = uniform << digit_bits | more.number(digit_bits)
            known += digit_bits
        if uniform < thresholds[c] >> (precision - known):
            break
        c += 1

    t = [int(fraction[i : i + digit_bits], 2) for i in range(0, 39, digit_bits)]
    links = 0
    last = t
    while choice < 2 * c or (choice == 2 * c and more.fresh_is_below(t)[0]):
        below, fresh = more.fresh_is_below(last)
        if not below:
            break
        links += 1
        last = fresh
        choice = more.number(11)
    if links % 2 == 1:
        return None, more.at

    while True:
        low = sum(Fraction(digit, 2 ** (digit_bits * (i + 1))) for i, digit in enumerate(t))
        high = low + Fraction(1, 2 ** (digit_bits * len(t)))
        nearest = math.floor(deviation * (c + low) / CELLS + Fraction(1, 2))
        if deviation * (c + high) / CELLS + Fraction(1, 2) <= nearest + 1:
            return (-nearest if sign == "1" else nearest), more.at
        t.append(more.number(digit_bits))


def rounded_normals(words, count, deviation, guide_bits=13, digit_bits=13):
    """At most `count` samples of round(deviation * xi) from the words, and how many words they used."""
    samples = []
    at = 0
    while len(samples) < count and at < len(words):
        try:
            sample, following = normal_attempt(words, at, deviation, guide_bits, digit_bits)
        except EOFError:
            break
        at = following
        if sample is not None:
            samples.append(sample)
    return samples, at


# Certified moments


def clipped_moments(locations, Y, h, beta, c, tau):
    """sum_i min(1, tau / N(y_i)) k(|u|) f f^T at each location, u = (y_i - a) / h, f = (u, sqrt(c))."""
    K, D = locations.shape
    sums = np.zeros((K, D + 1, D + 1))
    for y in Y:
        G = np.zeros((K, D + 1, D + 1))
        square = 0.0
        for a in range(K):
            weight = kernel_weight(squared_distance(locations[a], y) / (h * h), beta)
            f = [(y[k] - locations[a, k]) / h for k in range(D)] + [math.sqrt(c)]
            for j in range(D + 1):
                for k in range(D + 1):
                    G[a, j, k] = weight * f[j] * f[k]
                    square += G[a, j, k] ** 2
        if square > 0.0:
            sums += min(1.0, tau / math.sqrt(square)) * G
    return sums


def clipped_vectors(features, norm, tau, unit, length, bound):
    """The integer vectors that a record adds: a dictionary from place to list, empty if it adds nothing.

    `features` is a function of the factor: a dictionary from place to list of numbers to truncate. The first
    factor for which the bound holds, in Python's integers, is taken.
    """
    if not 0.0 < norm < math.inf:
        return {}
    factor = unit * math.sqrt(min(1.0, tau / norm)) / length
    shrink = 2.0**-50
    while shrink < 0.5:
        scaled = features(factor)
        if all_finite([value for vector in scaled.values() for value in vector]):
            vectors = {place: [math.trunc(value) for value in vector] for place, vector in scaled.items()}
            total = sum(sum(entry * entry for entry in vector) ** 2 for vector in vectors.values())
            if total <= bound * bound:
                return vectors
        factor *= 1.0 - shrink
        shrink *= 2.0
    return {}


def add_outer_products(sums, vectors):
    """Add v v^T to the sums at each place, in Python's integers."""
    for place, vector in vectors.items():
        for j in range(len(vector)):
            for k in range(len(vector)):
                sums[place, j, k] += vector[j] * vector[k]


def moment_vectors(locations, y, h, beta, c, tau, unit, bound):
    """The integer vectors that record y adds: a dictionary from location to list, sqrt(c) last.

    Floating point is used in the order of the kernel, and `locations` must come in the order of its leaves:
    where the squared distances are exact, so that their order does not matter, every bit is that of the
    kernel.
    """
    D = len(y)
    h2 = h * h
    share = 1.0 / h2
    roots = {}
    square = 0.0
    for a in range(len(locations)):
        r2 = 0.0
        for k in range(D):
            gap = float(y[k]) - float(locations[a][k])
            r2 += gap * gap
        t = share * (h2 - r2)
        if not t > 0.0:
            continue
        weight = t * t if beta == 2.0 else t**beta
        norm = weight * (c + share * r2)
        square += norm * norm
        roots[a] = t if beta == 2.0 else math.sqrt(weight)
    lead = h * math.sqrt(c)

    def features(factor):
        scaled = {}
        for a, root in roots.items():
            scale = factor * root
            scaled[a] = [scale * (float(y[k]) - float(locations[a][k])) for k in range(D)] + [scale * lead]
        return scaled

    return clipped_vectors(features, math.sqrt(square), tau, unit, h, bound)


def moment_sums(locations, Y, h, beta, c, tau, unit, bound):
    """Sums over records of v v^T at each location, in Python's integers (K, D + 1, D + 1)."""
    K, D = locations.shape
    sums = np.zeros((K, D + 1, D + 1), dtype=object)
    for y in Y:
        add_outer_products(sums, moment_vectors(locations, y, h, beta, c, tau, unit, bound))
    return sums


def read_out(value, location, h, c):
    """Mass, mean and covariance (in units of h^2) of one matrix of homogeneous moments."""
    D = len(location)
    mass = value[D, D] / c
    offset = [value[j, D] / (math.sqrt(c) * mass) for j in range(D)]
    mean = np.zeros(D)
    covariance = np.zeros((D, D))
    for j in range(D):
        mean[j] = location[j] + h * offset[j]
        for k in range(D):
            covariance[j, k] = value[j, k] / mass - offset[j] * offset[k]
    return mass, mean, covariance


def clean_moments(values, dim, noise_scale, occupied):
    """Keeps the dim + 1 largest eigenvalues, shrinks the others to the share of energy that is not noise."""
    K, F, _ = values.shape
    rest = F - dim - 1
    spectra = [np.linalg.eigh(values[a]) for a in range(K)]
    energies = [sum(value * value for value in spectra[a][0][:rest]) for a in range(K) if occupied[a]]
    energy = sum(energies) / len(energies) if energies else 0.0
    noise = 0.0  # of a symmetric matrix of order `rest`
    for j in range(rest):
        for k in range(rest):
            noise += noise_scale**2 if j == k else noise_scale**2 / 2
    share = max(0.0, 1.0 - noise / energy) if energy > 0.0 else 0.0
    out = np.zeros((K, F, F))
    for a in range(K):
        eigenvalues, vectors = spectra[a]
        for e in range(F):
            kept = max(0.0, eigenvalues[e] * (share if e < rest else 1.0))
            out[a] += kept * np.outer(vectors[:, e], vectors[:, e])
    return out


# The atlas


def atlas_move(X, centers, tangents, masses, h, offsets=None, slopes=None, strength=1.0, passes=1):
    """Points moved by a field of charts, and whether a chart was in reach in every pass."""
    moved, reached = [], []
    for x in np.asarray(X, dtype=float):
        start, ok = x.copy(), True
        for _ in range(passes):
            total, move = 0.0, np.zeros(len(x))
            for a in range(len(centers)):
                gap = x - centers[a]
                r2 = sum(g * g for g in gap)
                if not r2 < h * h:
                    continue
                weight = masses[a] * (1.0 - r2 / h**2) ** 2
                total += weight
                along = tangents[a].T @ gap
                if slopes is None:
                    move += weight * (tangents[a] @ along - gap)
                else:
                    move += weight * (offsets[a] + along @ slopes[a])
            if total == 0.0:
                ok = False
                break
            x = x + strength * move / total
        moved.append(x if ok else start)
        reached.append(ok)
    return np.array(moved), np.array(reached)


def residual_moments(X, R, centers, tangents, h, normal, c, tau):
    """Clipped moments of (V^T (x - b) / h, r / h_N, sqrt(c)) in real numbers, (K, F, F)."""
    K, D, d = tangents.shape
    sums = np.zeros((K, d + D + 1, d + D + 1))
    for x, r in zip(X, R, strict=True):
        parts, square = [], 0.0
        for a in range(K):
            gap = x - centers[a]
            t = 1.0 - (gap @ gap) / h**2 - (r @ r) / normal**2
            if not t > 0.0:
                continue
            f = np.concatenate([tangents[a].T @ gap / h, r / normal, [math.sqrt(c)]])
            matrix = t * t * np.outer(f, f)
            parts.append((a, matrix))
            square += float((matrix**2).sum())
        for a, matrix in parts:
            sums[a] += matrix * min(1.0, tau / math.sqrt(square))
    return sums


def residual_sums(X, R, centers, tangents, h, normal, c, tau, unit, bound):
    """Sums over records (x, r) of v v^T at each chart, in Python's integers (K, F, F).

    Every bit is that of the kernel where products of coordinates are exact and charts are in leaf order.
    """
    K, D, d = tangents.shape
    sums = np.zeros((K, d + D + 1, d + D + 1), dtype=object)
    share, lead = 1.0 / (h * h), math.sqrt(c)
    for x, r in zip(X, R, strict=True):
        residual2 = squared_norm(r) / (normal * normal)
        roots, along, square = {}, {}, 0.0
        for a in range(K):
            t = share * (h * h - squared_distance(x, centers[a])) - residual2
            if not (residual2 < 1.0 and t > 0.0):
                continue
            roots[a] = t
            along[a] = [sum(tangents[a, k, e] * (x[k] - centers[a, k]) for k in range(D)) for e in range(d)]
            norm = t * t * (c + share * squared_norm(along[a]) + residual2)
            square += norm * norm

        def features(factor, r=r, roots=roots, along=along):
            scaled = {}
            for a, root in roots.items():
                scale = factor * root
                tangential = [scale / h * value for value in along[a]]
                scaled[a] = [*tangential, *(scale / normal * value for value in r), scale * lead]
            return scaled

        add_outer_products(sums, clipped_vectors(features, math.sqrt(square), tau, unit, 1.0, bound))
    return sums


def feature_sums(features, tau, unit, bound):
    """Sum over records f of v v^T in Python's integers (1, F, F)."""
    F = features.shape[1]
    sums = np.zeros((1, F, F), dtype=object)
    for f in features:

        def scaled(factor, f=f):
            return {0: [factor * value for value in f]}

        add_outer_products(sums, clipped_vectors(scaled, squared_norm(f), tau, unit, 1.0, bound))
    return sums


def feature_moments(features, tau):
    """Sum of f f^T, each scaled to norm `tau` at most."""
    total = np.zeros((features.shape[1],) * 2)
    for f in features:
        norm = sum(float(value) * float(value) for value in f)
        if math.isfinite(norm) and norm > 0.0:
            total += np.outer(f, f) * min(1.0, tau / norm)
    return total


# Sums of a mixture


def mixture_responsibilities(log_weights, means, whitening, y, exp=math.exp, least=-9.0):
    """Responsibilities of components, a dictionary from number to r, and coordinates W^T (y - m) in each."""
    K, D = means.shape
    coordinates, logs = {}, {}
    for k in range(K):
        # in the order of the kernel: what stands for the mean first, then one column after the other
        u = [-sum(means[k, d] * whitening[k, d, e] for d in range(D)) for e in range(D)]
        for d in range(D):
            u = [u[e] + y[d] * whitening[k, d, e] for e in range(D)]
        coordinates[k] = u
        logs[k] = log_weights[k] - 0.5 * squared_norm(u)
    best = max((value for value in logs.values() if value == value), default=-math.inf)
    if not best > -math.inf:
        return {}, coordinates
    sizes = {k: exp(value - best) for k, value in logs.items() if value - best > least}
    total = 0.0
    for size in sizes.values():
        total += size
    return {k: size / total for k, size in sizes.items()}, coordinates


def mixture_sums(log_weights, means, whitening, Y, c, tau, unit, bound, exp=math.exp):
    """Sums over records of v v^T at each component, in Python's integers (K, D + 1, D + 1).

    Every bit is that of the kernel where products of coordinates are exact and `exp` is the kernel's.
    """
    K, D = means.shape
    sums = np.zeros((K, D + 1, D + 1), dtype=object)
    lead = math.sqrt(c)
    for y in Y:
        shares, coordinates = mixture_responsibilities(log_weights, means, whitening, y, exp)
        square = sum((r * (squared_norm(coordinates[k]) + c)) ** 2 for k, r in shares.items())

        def features(factor, shares=shares, coordinates=coordinates):
            scaled = {}
            for k, r in shares.items():
                scale = factor * math.sqrt(r)
                scaled[k] = [*(scale * value for value in coordinates[k]), scale * lead]
            return scaled

        add_outer_products(sums, clipped_vectors(features, math.sqrt(square), tau, unit, 1.0, bound))
    return sums


# Mixtures of normal distributions


def with_background(weights, means, covariances):
    """Components and three wide copies of the whole behind them, with small weights."""
    D = means.shape[1]
    mean = sum(w * m for w, m in zip(weights, means, strict=True))
    whole = np.zeros((D, D))
    for w, m, S in zip(weights, means, covariances, strict=True):
        whole += w * (S + np.outer(m - mean, m - mean))
    wide = ((0.01, 2.0), (0.003, 4.0), (0.001, 10.0))
    return (
        np.array([*(0.986 * weights), *(w for w, _ in wide)]),
        np.array([*means, *(mean for _ in wide)]),
        np.array([*covariances, *(width**2 * whole for _, width in wide)]),
    )


def mixture_posterior(weights, means, covariances, noise, z):
    """Mean, deviations and log density of one point that was seen with noise; NaN where it was not seen."""
    D = len(z)
    there = [j for j in range(D) if not math.isnan(z[j])]
    logs, centers, spreads = [], [], []
    for weight, m, S in zip(weights, means, covariances, strict=True):
        A = np.array([[S[i, j] + (noise[i] ** 2 if i == j else 0.0) for j in there] for i in there])
        A = A.reshape(len(there), len(there))
        gap = np.array([z[j] - m[j] for j in there])
        across = np.array([[S[i, j] for j in there] for i in range(D)]).reshape(D, len(there))
        solved, gain = np.linalg.solve(A, gap), np.linalg.solve(A, across.T).T
        determinant = np.linalg.slogdet(A)[1] if there else 0.0
        logs.append(math.log(weight) - 0.5 * float(gap @ solved) - 0.5 * determinant)
        centers.append(m + across @ solved)
        spreads.append([S[j, j] - float(gain[j] @ across[j]) for j in range(D)])
    best = max(logs)
    shares = [math.exp(value - best) for value in logs]
    total = sum(shares)
    mean, variance = np.zeros(D), np.zeros(D)
    for share, center in zip(shares, centers, strict=True):
        mean += share / total * center
    for share, center, spread in zip(shares, centers, spreads, strict=True):
        for j in range(D):
            variance[j] += share / total * (max(spread[j], 0.0) + (center[j] - mean[j]) ** 2)
    density = best + math.log(total) - 0.5 * len(there) * math.log(2.0 * math.pi)
    return mean, np.sqrt(variance), density if there else 0.0


def splitmix(state):
    """Output of splitmix64 at a state, in Python's integers."""
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) % 2**64
    return state ^ (state >> 31)


def row_words(z):
    """Function from a place to the random 64-bit word that a row has there, by the bits of its values."""
    step, key = 0x9E3779B97F4A7C15, 0
    for value in z:
        value = math.nan if math.isnan(value) else float(value) + 0.0
        bits = int.from_bytes(struct.pack("<d", value), "little")
        key = splitmix(((key + step) % 2**64) ^ bits)
    return lambda place: splitmix((key + (place + 1) * step) % 2**64)


def row_normal(words, column):
    """Standard normal number of a row for one column: a sum of twelve uniform 16-bit integers."""
    total = sum((words(1 + 3 * column + w) >> (16 * part)) % 65536 for w in range(3) for part in range(4))
    return (total - 12 * 65535 / 2) / math.sqrt(65536**2 - 1)


def draw_missing(weights, means, covariances, z):
    """The point with what is missing drawn given the rest, by its own bits, unless nothing is there."""
    D = len(z)
    there = [j for j in range(D) if not math.isnan(z[j])]
    gone = [j for j in range(D) if math.isnan(z[j])]
    if not there or not gone:
        return np.array(z)
    words = row_words(z)
    logs = []
    for weight, m, S in zip(weights, means, covariances, strict=True):
        A, gap = S[np.ix_(there, there)], np.array([z[j] - m[j] for j in there])
        logs.append(math.log(weight) - 0.5 * (np.linalg.slogdet(A)[1] + float(gap @ np.linalg.solve(A, gap))))
    shares = [math.exp(value - max(logs)) for value in logs]
    u, total, k = words(0) / 2**64, 0.0, -1
    while u >= total:
        k += 1
        total += shares[k] / sum(shares)
    m, S = means[k], covariances[k]
    gap = np.array([z[j] - m[j] for j in there])
    center = m[gone] + S[np.ix_(gone, there)] @ np.linalg.solve(S[np.ix_(there, there)], gap)
    L = np.linalg.cholesky(np.linalg.inv(S)[np.ix_(gone, gone)])
    out = np.array(z)
    out[gone] = center + np.linalg.solve(L.T, [row_normal(words, j) for j in gone])
    return out


def to_units(X, logged, center, scale, clip):
    """Return rows in the units of a preprocessor, the same within +-clip, and which rows were beyond.

    Also which columns are logged and have a value that is not positive.
    """
    without_log = [False for _ in center]
    scaled = [[0.0] * len(center) for _ in X]
    inside = [[0.0] * len(center) for _ in X]
    for i, row in enumerate(X):
        for k, value in enumerate(row):
            if logged[k]:
                without_log[k] |= value <= 0.0
                value = math.log(value) if value > 0.0 else -math.inf if value == 0.0 else math.nan
            scaled[i][k] = (value - center[k]) / scale[k]
            inside[i][k] = min(max(scaled[i][k], -clip), clip)
    beyond = [before != after for before, after in zip(scaled, inside, strict=True)]
    return scaled, inside, beyond, without_log


def from_units(X, before, after, logged, center, scale):
    """Return rows in original units: what did not move keeps its value."""
    out = [list(row) for row in X]
    for i, row in enumerate(after):
        for k, value in enumerate(row):
            if value != before[i][k]:
                original = center[k] + scale[k] * value
                out[i][k] = math.exp(original) if logged[k] else original
    return out
