"""docs/numerics/operations.md in NumPy: slow, plain, and written from that document alone."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Integers = NDArray[np.int64]

ROUNDER = np.float32(1.5 * 2**23)
ROUNDER_BITS = 0x4B400000
LANES = 256


def number(text: str) -> np.float32:
    """A number in C's hexadecimal notation."""
    return np.float32(float.fromhex(text))


def fma(a: ArrayLike, b: ArrayLike, c: ArrayLike) -> Floats:
    """a * b + c of float32, rounded once.

    The product is exact in float64. Their sum is rounded to odd there: where it is not exact, the
    last bit is set, so that rounding it to float32 sees on which side of a tie it lies.
    """
    first, second, summand = (_exactly(x) for x in (a, b, c))
    product, summand = np.broadcast_arrays(first * second, summand)
    with np.errstate(all="ignore"):
        total = np.asarray(product + summand)
        back = total - product
        error = (product - (total - back)) + (summand - back)
        bits = total.view(np.int64)
        is_even = (bits & 1) == 0
        away = np.where((error > 0) == (total > 0), 1, -1)
        odd = np.where((error != 0) & is_even & np.isfinite(error), bits + away, bits)
        return np.asarray(odd).view(np.float64).astype(np.float32)


def _exactly(x: ArrayLike) -> Doubles:
    return np.asarray(x, dtype=np.float32).astype(np.float64)


def poly(x: Floats, *coefficients: str) -> Floats:
    """Horner's scheme, highest degree first."""
    value: Floats = np.full_like(x, number(coefficients[0]))
    for coefficient in coefficients[1:]:
        value = fma(value, x, number(coefficient))
    return value


def bits_of(x: Floats) -> NDArray[np.int32]:
    return np.asarray(x, dtype=np.float32).view(np.int32)


def pow2(exponent: NDArray[np.generic]) -> Floats:
    """2^k; 0 below the normal numbers, infinity above."""
    k = np.asarray(exponent, dtype=np.int64)
    value = np.ldexp(np.float32(1), np.clip(k, -126, 127).astype(np.int32))
    return np.where(k < -126, 0, np.where(k > 127, np.inf, value)).astype(np.float32)


def limited(x: Floats, low: float, high: float) -> Floats:
    """NaN stays."""
    x = np.where(x < np.float32(low), np.float32(low), x)
    return np.where(x > np.float32(high), np.float32(high), x)


def scaled(y: Floats, n: NDArray[np.signedinteger]) -> Floats:
    half = n >> 1
    return y * pow2(half) * pow2(n - half)


def exp(x: Floats) -> Floats:
    x = limited(x, -104, 89)
    t = fma(x, number("0x1.715476p+0"), ROUNDER)
    whole = t - ROUNDER
    r = fma(whole, -number("0x1.62e4p-1"), x)
    r = fma(whole, -number("0x1.7f7d1cp-20"), r)
    p = poly(
        r, "0x1.6a5154p-10", "0x1.12397cp-7", "0x1.5558acp-5", "0x1.555492p-3", "0x1.fffffcp-2"
    )
    y = fma(p, r * r, r) + np.float32(1)
    return scaled(y, bits_of(t) - ROUNDER_BITS)


def exp2_of_fraction(f: Floats) -> Floats:
    return poly(
        f,
        *("0x1.416b5p-13", "0x1.5f082ep-10", "0x1.3b2dep-7"),
        *("0x1.c6af7cp-5", "0x1.ebfbdcp-3", "0x1.62e43p-1", "1"),
    )


def exp2(x: Floats) -> Floats:
    x = limited(x, -151, 129)
    t = x + ROUNDER
    y = exp2_of_fraction(x - (t - ROUNDER))
    return scaled(y, bits_of(t) - ROUNDER_BITS)


def log(x: Floats) -> Floats:
    is_subnormal = x < np.float32(2.0**-126)
    bits = bits_of(np.where(is_subnormal, x * np.float32(2.0**24), x)).astype(np.int64)
    exponent = (bits - 0x3F3504F3) >> 23
    m = (bits - (exponent << 23)).astype(np.uint32).view(np.float32)
    e = np.where(is_subnormal, exponent - 24, exponent).astype(np.float32)
    f = m - np.float32(1)
    z = f * f
    p = poly(
        f,
        *("-0x1.38c9dep-4", "0x1.055ec6p-3", "-0x1.0d8242p-3", "0x1.22d92ep-3"),
        *("-0x1.54728ap-3", "0x1.99a01cp-3", "-0x1.000226p-2", "0x1.555554p-2"),
    )
    y = p * z * f
    y = fma(e, -number("0x1.bd0106p-13"), y)
    y = fma(z, np.float32(-0.5), y)
    y = fma(e, number("0x1.63p-1"), f + y)
    y = np.where(np.isposinf(x), x, y)
    y = np.where(x == 0, np.float32(-np.inf), y)
    return np.where(x >= 0, y, np.float32(np.nan)).astype(np.float32)


def softplus(x: Floats) -> Floats:
    e = exp(-np.abs(x))
    u = np.float32(1) + e
    rest = log(u) + (e - (u - np.float32(1))) / u
    return np.where(x > 0, x, np.float32(0)) + rest


def tanh(x: Floats) -> Floats:
    a = np.abs(x)
    z = a * a
    p = poly(
        z, "-0x1.750ce2p-8", "0x1.51f8cep-6", "-0x1.b835a4p-5", "0x1.1106f6p-3", "-0x1.555532p-2"
    )
    near = fma(p * z, a, a)
    e = exp(np.float32(-2) * a)
    one = np.float32(1)
    far = (one - e) / (one + e)
    return np.copysign(np.where(a < np.float32(0.625), near, far), x)


def times_sigmoid(x: Floats, y: Floats) -> Floats:
    e = exp(-np.abs(y))
    return np.where(y < 0, x * e, x) / (np.float32(1) + e)


def sigmoid(x: Floats) -> Floats:
    return times_sigmoid(np.ones_like(x), x)


def scaled_normal_tail(t: Floats) -> Floats:
    return poly(
        t,
        *("-0x1.d41c6ep-6", "0x1.2e3faep-3", "-0x1.1e48cp-2", "0x1.9a12f6p-3", "-0x1.79e042p-5"),
        *("0x1.da8ab8p-4", "0x1.da3faap-4", "0x1.1a0c28p-3", "0x1.18c8b6p-3", "0x1.a80534p-21"),
    )


def gaussian(a: Floats, k: float) -> Floats:
    factor = np.float32(-k)
    s = a * a
    d = fma(a, a, -s)
    e = exp(factor * s)
    return fma(e, factor * d, e)


def erf(x: Floats) -> Floats:
    a = np.abs(x)
    p = poly(
        a * a,
        *("-0x1.3c566ap-11", "0x1.47c52ap-8", "-0x1.b6a216p-6"),
        *("0x1.ce1beep-4", "-0x1.8126eep-2", "0x1.06eba6p-3"),
    )
    near = fma(p, a, a)
    c = limited(a, 0, 5)
    t = np.float32(1) / fma(c, number("0x1.f1cd9cp-2"), np.float32(1))
    far = fma(gaussian(c, 1) * scaled_normal_tail(t), np.float32(-2), np.float32(1))
    return np.copysign(np.where(a < np.float32(0.875), near, far), x)


def silu(x: Floats) -> Floats:
    return times_sigmoid(x, x)


def quick_gelu(x: Floats) -> Floats:
    return times_sigmoid(x, number("0x1.b3b646p+0") * x)


def gelu_tanh(x: Floats) -> Floats:
    return times_sigmoid(x, x * fma(x * x, number("0x1.2444f2p-4"), number("0x1.988454p+0")))


def gelu(x: Floats) -> Floats:
    c = limited(np.abs(x), 0, 14.5)
    t = np.float32(1) / fma(c, np.float32(0.34375), np.float32(1))
    q = gaussian(c, 0.5) * scaled_normal_tail(t)
    return x * np.where(x < 0, q, np.float32(1) - q)


def relu(x: Floats) -> Floats:
    return np.where(x < 0, np.float32(0), x)


def squared_relu(x: Floats) -> Floats:
    return relu(x) * relu(x)


FUNCTIONS = {
    f.__name__: f
    for f in (exp, exp2, log, tanh, sigmoid, erf, relu, squared_relu, silu, quick_gelu, gelu)
}
FUNCTIONS["gelu_tanh"] = gelu_tanh


def lane_sum(x: Floats, *, squares: bool = False) -> np.float32:
    """The sum, or the sum of squares, of a row in the order of 256 lanes."""
    lanes = np.zeros(LANES, dtype=np.float32)
    for start in range(0, len(x), LANES):
        part = x[start : start + LANES]
        here = lanes[: len(part)]
        lanes[: len(part)] = fma(part, part, here) if squares else here + part
    half = LANES // 2
    while half >= 1:
        lanes[:half] += lanes[half : 2 * half]
        half //= 2
    return np.float32(lanes[0])


def norm(
    x: Floats,
    weight: Floats | None,
    bias: Floats | None,
    epsilon: float,
    offset: float,
    *,
    is_centred: bool,
) -> Floats:
    """One row."""
    size = np.float32(len(x))
    if is_centred:
        x = x - lane_sum(x) / size
    mean = lane_sum(x, squares=True) / size
    x = x * (np.float32(1) / np.sqrt(mean + np.float32(epsilon)))
    if weight is None:
        return x
    weight = weight + np.float32(offset)
    return x * weight if bias is None else fma(x, weight, bias)


def sine_and_cosine(x: Doubles) -> tuple[Doubles, Doubles]:
    rounder = 1.5 * 2.0**52
    n = (x * float.fromhex("0x1.45f306dc9c883p-1") + rounder) - rounder
    r = x - n * float.fromhex("0x1.921fb544p+0")
    r = r - n * float.fromhex("0x1.0b4611a6p-34")
    r = r - n * float.fromhex("0x1.3198a2e037073p-69")
    q = r * r
    s = np.zeros_like(x)
    for k in range(17, 2, -2):
        s = ((1 - s) * q) / (k * (k - 1))
    c = np.zeros_like(x)
    for k in range(18, 1, -2):
        c = ((1 - c) * q) / (k * (k - 1))
    s, c = r - r * s, 1 - c
    quadrant = n.astype(np.int64) & 3
    return np.choose(quadrant, [s, c, -s, -c]), np.choose(quadrant, [c, -s, -c, s])


def rotary_table(frequencies: Floats, positions: int, scale: float) -> Floats:
    angles = np.arange(positions, dtype=np.float64)[:, None] * frequencies.astype(np.float64)
    sine, cosine = sine_and_cosine(angles)
    return np.concatenate([cosine * scale, sine * scale], axis=1).astype(np.float32)


def log64(x: float) -> float:
    bits = int(np.float64(x).view(np.int64))
    e = (bits - 0x3FE6A09E667F3BCD) >> 52
    m = float(np.int64(bits - (e << 52)).view(np.float64))
    s = (m - 1) / (m + 1)
    q = s * s
    p = 0.0
    for k in range(21, 2, -2):
        p = (p + 1 / k) * q
    low = float.fromhex("0x1.a39ef35793c76p-33")
    return e * float.fromhex("0x1.62e42feep-1") + (2 * (s + s * p) + e * low)


def exp64(x: float) -> float:
    rounder = 1.5 * 2.0**52
    n = (x * float.fromhex("0x1.71547652b82fep+0") + rounder) - rounder
    low = float.fromhex("0x1.a39ef35793c76p-33")
    r = (x - n * float.fromhex("0x1.62e42feep-1")) - n * low
    p = 1.0
    for k in range(13, 0, -1):
        p = 1 + (p * r) / k
    return p * 2.0 ** int(n)


def rotary_frequencies(size: int, base: float) -> Floats:
    values = [exp64(-((2 * i / size) * log64(base))) for i in range(size // 2)]
    return np.array(values, dtype=np.float64).astype(np.float32)


def rotate(x: Floats, row: Floats, *, is_interleaved: bool) -> Floats:
    """One head, with its position's row of the table."""
    half = len(row) // 2
    cosine, sine = row[:half], row[half:]
    first = slice(0, 2 * half, 2) if is_interleaved else slice(0, half)
    second = slice(1, 2 * half, 2) if is_interleaved else slice(half, 2 * half)
    result = x.copy()
    a, b = x[first], x[second]
    result[first] = fma(a, cosine, -(b * sine))
    result[second] = fma(b, cosine, a * sine)
    return result


def keys(x: Floats) -> Integers:
    """Integers in the order of logits."""
    bits = bits_of(x + np.float32(0)).astype(np.int64)
    key = np.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    # What was negative keeps its sign above bit 31.
    return np.where(np.isnan(x), 2**31 - 1, key)


def ranking(x: Floats) -> Integers:
    """Indices in the order of logits."""
    return np.lexsort((np.arange(len(x)), -keys(x)))


def argmax(x: Floats) -> int:
    return int(ranking(x)[0])


def counts(probabilities: Floats) -> Integers:
    return np.rint(probabilities.astype(np.float64) * 2.0**34).astype(np.int64)


def log_softmax(x: Floats) -> Floats:
    largest = x[argmax(x)]
    if not np.isfinite(largest):
        return np.full_like(x, np.nan)
    u = x - largest
    total = int(counts(exp(u)).sum())
    return u - log(np.array([total * 2.0**-34], dtype=np.float64).astype(np.float32))[0]


def restricted(x: Floats, temperature: float, top_k: int, top_p: float, min_p: float) -> Floats:
    """The logits of a row of which some tokens are removed."""
    best = argmax(x)
    if not np.isfinite(x[best]):
        return x
    is_kept = np.zeros(len(x), dtype=bool)
    if temperature == 0:
        is_kept[best] = True
        return np.where(is_kept, x, np.float32(-np.inf))
    z = x / np.float32(temperature)
    if not np.isfinite(z[best]):
        return z
    probabilities = exp(z - z[best])
    is_removed = probabilities < np.float32(min_p)
    z[is_removed] = -np.inf
    weights = np.where(is_removed, 0, counts(probabilities))
    left = ranking(z)[: top_k if top_k > 0 else None]
    if np.float32(top_p) < 1:
        bound = float(weights[left].sum()) * float(np.float32(top_p))
        before = np.cumsum(weights[left]) - weights[left]
        left = left[(before < bound) | (np.arange(len(left)) == 0)]
    is_kept[left] = True
    return np.where(is_kept, z, np.float32(-np.inf))


def philox(seed: int, position: int, group: int) -> list[int]:
    mask = 2**32 - 1
    counter = [group, position & mask, position >> 32 & mask, 0]
    key = [seed & mask, seed >> 32 & mask]
    for _ in range(10):
        a, b = counter[0] * 0xD2511F53, counter[2] * 0xCD9E8D57
        counter = [b >> 32 ^ counter[1] ^ key[0], b & mask, a >> 32 ^ counter[3] ^ key[1], a & mask]
        key = [(key[0] + 0x9E3779B9) & mask, (key[1] + 0xBB67AE85) & mask]
    return counter


def noise(seed: int, position: int, count: int) -> Floats:
    words = np.array(
        [word for group in range(-(-count // 4)) for word in philox(seed, position, group)],
        dtype=np.int64,
    )[:count]
    low = fma((words & 0xFFFF).astype(np.float32), np.float32(2.0**-32), np.float32(2.0**-33))
    u = fma((words >> 16).astype(np.float32), np.float32(2.0**-16), low)
    one = np.float32(1)
    v = np.where(u == one, np.float32(2.0**-33), one - u)
    with np.errstate(all="ignore"):
        q = np.where(v == one, u, -(log(v) * (u / (one - v))))
    return -log(q)


def draw(x: Floats, seed: int, position: int) -> int:
    if not np.isfinite(x[argmax(x)]):
        return -1
    return argmax(x + noise(seed, position, len(x)))
