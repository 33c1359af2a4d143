"""Verbs of the kernel language that need more than an instruction: fused multiply-add, byte dots, exp, sums.

Each gives the same bits in every kernel that uses it on one processor; where a processor lacks an instruction, a
recipe from others stands in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from puna.backends.cpu.lang import Ptr, Value

__all__ = [
    "as_halves",
    "dot_pairs",
    "dot_u8s8",
    "exp",
    "fma",
    "fold",
    "load_floats",
    "load_halves",
    "max_lanes",
    "maximum",
    "minimum",
    "reciprocal_root",
    "root",
    "round_even",
    "round_halves",
    "store_floats",
    "sum_lanes",
    "tanh",
]

# Adding 1.5 * 2**23 leaves no bits of a float for a fraction: the sum is rounded to a whole number, ties to even.
WHOLE = 12582912.0


def call(name: str, result: Value, *args: Value) -> Value:
    """An LLVM intrinsic whose result has the type of `result`."""
    return Value(result.k, result.k.intrinsic(name, result.ir.type, [arg.ir for arg in args]), result.kind)


def overloaded(name: str, x: Value) -> str:
    return f"{name}.f32" if x.lanes == 1 else f"{name}.v{x.lanes}f32"


def fma(a: Value, b: Value, c: Value) -> Value:
    """a * b + c, rounded once where the processor does that in one instruction, twice where it does not."""
    lanes = max(a.lanes, b.lanes, c.lanes)
    a, b, c = a.splat(lanes), b.splat(lanes), c.splat(lanes)
    return call(overloaded("llvm.fma", c), c, a, b, c) if c.k.target.fused else a * b + c


def maximum(a: Value, b: Value) -> Value:
    """The larger; b where either is NaN."""
    return a.k.select(a > b, a, b)


def minimum(a: Value, b: Value) -> Value:
    """The smaller; b where either is NaN."""
    return a.k.select(a < b, a, b)


def round_even(x: Value) -> Value:
    """To the nearest whole number, ties to even, for |x| < 2**22."""
    if x.k.target.rounds:
        return call(overloaded("llvm.rint", x), x, x)
    return x + WHOLE - WHOLE


def root(x: Value) -> Value:
    """sqrt(x), rounded correctly."""
    return call(overloaded("llvm.sqrt", x), x, x)


def reciprocal_root(x: Value) -> Value:
    """1 / sqrt(x), each operation rounded correctly."""
    return x.k.const("f32", 1.0, x.lanes) / root(x)


def fold(x: Value, how: Callable[[Value, Value], Value]) -> Value:
    """Lanes combined in a fixed tree: halves, quarters, and so on."""
    while x.lanes > 1:
        half = x.lanes // 2
        x = how(x[:half], x[half:]) if half > 1 else how(x[0], x[1])
    return x


def sum_lanes(x: Value) -> Value:
    return fold(x, lambda a, b: a + b)


def max_lanes(x: Value) -> Value:
    return fold(x, maximum)


def exp(x: Value) -> Value:
    """e to the x, within 2 units of the last place from -87.33 to 88.37; 0 below, about 2.4e38 above; NaN for NaN.

    x = n ln 2 + r with |r| <= ln(2) / 2; then 2**n times a polynomial in r. Its coefficients from r**2 on are those
    of the smallest relative error (Remez exchange), 2**-28.
    """
    k = x.k
    low, high = k.const("f32", -87.33654, x.lanes), k.const("f32", 88.376, x.lanes)
    clamped = minimum(high, maximum(low, x))  # a NaN comes through both
    shifted = fma(clamped, k.const("f32", 1.44269504), k.const("f32", WHOLE))  # n is in the bits at its end
    n = shifted - WHOLE
    r = fma(n, k.const("f32", -0.693145751953125), clamped)
    r = fma(n, k.const("f32", -1.42860677e-06), r)
    power = k.const("f32", 0.001381459856, x.lanes)
    for coefficient in (0.008368716879, 0.041668388047, 0.166665206317, 0.499999934478, 1.0, 1.0):
        power = fma(power, r, k.const("f32", coefficient))
    scale = ((shifted.as_("u32") << 23) + (127 << 23)).as_("f32")
    return k.select(x < low, k.zeros("f32", x.lanes), power * scale)


def tanh(x: Value) -> Value:
    """1 - 2 / (exp(2 x) + 1), within 2e-7; NaN for NaN."""
    one = x.k.const("f32", 1.0, x.lanes)
    return one - one * 2.0 / (exp(x * 2.0) + one)


def load_floats(p: Ptr, kind: str, lanes: int, offset: Value | int = 0) -> Value:
    """`lanes` values stored in a plain type, such as F32, F16, BF16, F64 or I8, as the nearest f32."""
    if kind == "F16":
        return load_halves(p, lanes, offset)
    if kind == "BF16":
        return (p.load("u16", lanes, offset).to("u32") << 16).as_("f32")
    return p.load(kind.lower(), lanes, offset).to("f32")


def store_floats(p: Ptr, kind: str, values: Value, offset: Value | int = 0) -> None:
    """Store f32 values as F32, F16 or BF16, rounded to nearest even."""
    if kind == "F32":
        p.store(values, offset, 4)
    elif kind == "F16":
        p.store(round_halves(values), offset)
    else:
        p.store(round_bf16(values), offset)


def load_halves(p: Ptr, lanes: int, offset: Value | int = 0) -> Value:
    """`lanes` half floats as f32."""
    if p.k.target.halves:
        return p.load("f16", lanes, offset).to("f32")
    return as_halves(p.load("u16", lanes, offset))


def as_halves(bits: Value) -> Value:
    """The half floats with these bits (u16), as f32."""
    return bits.as_("f16").to("f32") if bits.k.target.halves else widen(bits)


def widen(bits: Value) -> Value:
    """Half floats (as u16) to f32 by integer steps: shift the exponent, and let the FPU normalise denormals."""
    k = bits.k
    word = bits.to("u32")
    sign, rest = (word & 0x8000) << 16, word & 0x7FFF
    normal = ((rest << 13) + (112 << 23)).as_("f32")
    tiny = rest.to("f32") * 2.0**-24
    special = ((rest << 13) | (255 << 23)).as_("f32")
    value = k.select(rest < 0x400, tiny, k.select(rest >= 0x7C00, special, normal))
    return (value.as_("u32") | sign).as_("f32")


def round_halves(x: Value) -> Value:
    """f32 to half floats, as u16, to nearest even; too large becomes infinite."""
    if x.k.target.halves:
        return x.to("f16").as_("u16")
    k = x.k
    bits = x.as_("u32")
    sign, rest = (bits >> 16) & 0x8000, bits & 0x7FFFFFFF
    normal = (rest + 0xFFF + ((rest >> 13) & 1) - (112 << 23)) >> 13
    # Adding 0.5 leaves the denormal's bits, rounded, at the bottom of the sum.
    tiny = (rest.as_("f32") + 0.5).as_("u32") - (126 << 23)
    large = k.select(rest > 0x7F800000, k.const("u32", 0x7E00, x.lanes), k.const("u32", 0x7C00, x.lanes))
    small = k.select(rest < 0x38800000, tiny, normal)
    return (k.select(rest >= 0x477FF000, large, small) | sign).to("u16")


def round_bf16(x: Value) -> Value:
    """f32 to the nearest bf16, as u16, ties to even; NaN stays NaN."""
    bits = x.as_("u32")
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    return (x.k.select((bits & 0x7FFFFFFF) > 0x7F800000, bits | 0x400000, rounded) >> 16).to("u16")


def dot_pairs(total: Value, a: Value, b: Value) -> Value:
    """total[i] + a[2 i] * b[2 i] + a[2 i + 1] * b[2 i + 1]: f32 [n] from bf16 [2 n], where the target has `pairs`.

    The instruction says in which order, and how often, that is rounded.
    """
    if total.lanes == 1:
        zeros = total.k.zeros("u16", 6)
        padded = total.pair(total.k.zeros("f32")).cat(total.k.zeros("f32", 2))
        return dot_pairs(padded, a.cat(zeros), b.cat(zeros))[0]
    name, most = PAIRS[total.k.target.pairs]
    lanes, parts = min(most, total.lanes), []
    for i in range(0, total.lanes, lanes):
        part, pairs = total[i : i + lanes], slice(2 * i, 2 * (i + lanes))
        parts.append(call(name.format(32 * lanes), part, part, a[pairs].as_("bf16"), b[pairs].as_("bf16")))
    while len(parts) > 1:
        parts = [a.cat(b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def dot_u8s8(total: Value, u: Value, s: Value, bits: int = 8) -> Value:
    """total[i] + sum over j of u[4 i + j] * s[4 i + j], exactly: i32 [n] from u8 and i8 [4 n].

    bits: how many of a code's bits can be set; seven or less lets some processors take a shorter way.
    """
    recipe, lanes = DOTS[total.k.target.dot]
    if lanes == 0 or total.lanes < lanes:
        return plain(total, u, s, bits)
    parts = [
        recipe(total[i : i + lanes], u[4 * i : 4 * (i + lanes)], s[4 * i : 4 * (i + lanes)], bits)
        for i in range(0, total.lanes, lanes)
    ]
    while len(parts) > 1:
        parts = [a.cat(b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def plain(total: Value, u: Value, s: Value, bits: int) -> Value:
    for j in range(4):
        total = total + u[j::4].to("i32") * s[j::4].to("i32")
    return total


def vpdpbusd_512(total: Value, u: Value, s: Value, bits: int) -> Value:
    return call("llvm.x86.avx512.vpdpbusd.512", total, total, u, s)


def vpdpbusd_256(total: Value, u: Value, s: Value, bits: int) -> Value:
    return call("llvm.x86.avx512.vpdpbusd.256", total, total, u, s)


def pairs(total: Value, u: Value, s: Value, bits: int, products: str, sums: str) -> Value:
    """Products of bytes added in pairs to 16 bits, those in pairs to 32.

    255 * 127 * 2 does not fit 16 bits, so a code's eighth bit takes a way of its own.
    """
    k = total.k
    pair = k.zeros("i16", u.lanes // 2)
    ones = k.const("i16", 1, pair.lanes)
    low = call(products, pair, u & 127 if bits > 7 else u, s)
    total = total + call(sums, total, low, ones)
    if bits > 7:
        total = total + call(sums, total, call(products, pair, u >> 7, s), ones * 128)
    return total


def pmaddubsw_512(total: Value, u: Value, s: Value, bits: int) -> Value:
    return pairs(total, u, s, bits, "llvm.x86.avx512.pmaddubs.w.512", "llvm.x86.avx512.pmaddw.d.512")


def pmaddubsw_256(total: Value, u: Value, s: Value, bits: int) -> Value:
    return pairs(total, u, s, bits, "llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmadd.wd")


def pmaddubsw_128(total: Value, u: Value, s: Value, bits: int) -> Value:
    return pairs(total, u, s, bits, "llvm.x86.ssse3.pmadd.ub.sw.128", "llvm.x86.sse2.pmadd.wd")


def usdot(total: Value, u: Value, s: Value, bits: int) -> Value:
    return call("llvm.aarch64.neon.usdot.v4i32.v16i8", total, total, u, s)


def sdot(total: Value, u: Value, s: Value, bits: int) -> Value:
    """Both sides are signed here, so a code of eight bits goes in as code - 128, and 128 times the sum is added."""
    name = "llvm.aarch64.neon.sdot.v4i32.v16i8"
    if bits <= 7:
        return call(name, total, total, u, s)
    half = total.k.const("i8", 64, s.lanes)
    for _ in range(2):
        total = call(name, total, total, half, s)
    return call(name, total, total, u ^ 128, s)


def smull(total: Value, u: Value, s: Value, bits: int) -> Value:
    """Products of 16 bits, added in pairs. With codes of eight bits a pair may need 17, so those widen first.

    Both sides are signed here too: a code of eight bits goes in as code - 128.
    """
    a = (u if bits <= 7 else u ^ 128).as_("i8")
    parts = [a[i : i + 8].to("i16") * s[i : i + 8].to("i16") for i in (0, 8)]
    if bits <= 7:
        pairs = call("llvm.aarch64.neon.addp.v8i16", parts[0], *parts)
        return total + widened(total, pairs)
    fours = call("llvm.aarch64.neon.addp.v4i32", total, *(widened(total, part) for part in parts))
    sums = widened(total, call("llvm.aarch64.neon.saddlp.v8i16.v16i8", parts[0], s))
    return total + fours + (sums << 7)


def widened(total: Value, pairs: Value) -> Value:
    return call("llvm.aarch64.neon.saddlp.v4i32.v8i16", total, pairs)


# Of instructions for pairs of bf16: LLVM's name for so many bits, and the most lanes of its totals.
PAIRS: Mapping[str, tuple[str, int]] = {
    "vdpbf16ps": ("llvm.x86.avx512bf16.dpbf16ps.{}", 16),
    "bfdot": ("llvm.aarch64.neon.bfdot.v4f32.v8bf16", 4),
}
Recipe = Callable[[Value, Value, Value, int], Value]
# Recipe and the lanes of its totals.
DOTS: Mapping[str, tuple[Recipe, int]] = {
    "vpdpbusd.512": (vpdpbusd_512, 16),
    "vpdpbusd.256": (vpdpbusd_256, 8),
    "pmaddubsw.512": (pmaddubsw_512, 16),
    "pmaddubsw.256": (pmaddubsw_256, 8),
    "pmaddubsw.128": (pmaddubsw_128, 4),
    "usdot": (usdot, 4),
    "sdot": (sdot, 4),
    "smull": (smull, 4),
    "plain": (plain, 0),
}
