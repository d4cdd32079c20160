"""Functions that generated modules call where one operation does not do; each is printed where it is used."""

from __future__ import annotations

# `_log1p` and `_expm1` say tl.fma, for kernels are compiled to fuse no additions.
TRITON_HELPERS = {
    "_sum_rows": '''
@_jit
def _sum_rows(select, x, TERMS: tl.constexpr):
    """select @ x for a 0/1 matrix, x in TERMS bfloat16 terms, or in one if that is what it is: 2 err by 2**-16 of x,
    3 hold all bits of a float32."""
    if x.dtype == tl.float64:
        total = tl.dot(select.to(tl.float64), x, input_precision="ieee")
    elif x.dtype == BFLOAT16:
        total = tl.dot(select.to(BFLOAT16), x)
    else:
        picked = select.to(BFLOAT16)
        rest = x.to(tl.float32)
        total = tl.zeros([select.shape[0], x.shape[1]], dtype=tl.float32)
        for _ in tl.static_range(TERMS - 1):
            term = _cut(rest)
            total += tl.dot(picked, term.to(BFLOAT16))
            rest = rest - term.to(tl.float32)
        total += tl.dot(picked, rest.to(BFLOAT16))
    return total
''',
    "_at_least": '''
@_jit
def _at_least(x, LEAST: tl.constexpr, inside, LATE: tl.constexpr):
    """x, but LEAST at least; NaN stays. Of bfloat16 two by an instruction; LATE, after a loop, Triton is to leave that
    there. `inside` is where x is not 0 for lack of a tensor: without it, Triton moves comparisons behind each dot's
    copy of x. (H200, Triton 3.6.0, bf16, B16 T2048 H4 K128 V256, gla's key gradients: 0.25 ms, moved 0.27.)"""
    if COMPILED and x.dtype == BFLOAT16 and tl.target_info.cuda_capability_geq(8):
        least = tl.full(x.shape, LEAST, x.dtype)
        bounded = tl.inline_asm_elementwise("max.NaN.bf16x2 $0, $1, $2;", "=r,r,r", [x, least], x.dtype, not LATE, 2)
    else:
        bounded = tl.where(inside & (x < LEAST), LEAST, x)
    return bounded
''',
    "_cut": '''
@_jit
def _cut(x):
    """The upper half of a float32's bits, which is a bfloat16: on GPUs that is faster than to round."""
    return (x.to(tl.uint32, bitcast=True) >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
''',
    "_sum_between": '''
@_jit
def _sum_between(x, TRANSPOSED: tl.constexpr, BEFORE: tl.constexpr, TERMS: tl.constexpr):
    """[t, s]: the sum of x over the steps after s through t (BEFORE: before t), 0 without any; TRANSPOSED: [s, t].

    For types with fewer digits a difference of sums from the first step, which errs by 2**-24 of those."""
    row = tl.arange(0, x.shape[0])
    t, s = (row[None, :], row[:, None]) if TRANSPOSED else (row[:, None], row[None, :])
    if TERMS == 2:
        through = tl.cumsum(x)
        up_to = through - x if BEFORE else through
        apart = up_to[None, :] - through[:, None] if TRANSPOSED else up_to[:, None] - through[None, :]
        total = tl.where(t > s, apart, 0.0)
    elif TRANSPOSED:
        steps = tl.where(row[:, None] < t if BEFORE else row[:, None] <= t, x[:, None], 0.0)
        total = _sum_rows(row[:, None] < row[None, :], steps, TERMS)
    else:
        steps = tl.where(row[:, None] > s, x[:, None], 0.0)
        total = _sum_rows(row[:, None] > row[None, :] if BEFORE else row[:, None] >= row[None, :], steps, TERMS)
    return total
''',
    "_sum_after": '''
@_jit
def _sum_after(x, TERMS: tl.constexpr):
    """Each step's sum of x over all later ones; see _sum_between for TERMS."""
    if TERMS == 2:
        total = tl.sum(x) - tl.cumsum(x)
    else:
        row = tl.arange(0, x.shape[0])
        total = tl.sum(tl.where(row[:, None] < row[None, :], x[None, :], 0.0), axis=1)
    return total
''',
    "_sum_before": '''
@_jit
def _sum_before(x, TERMS: tl.constexpr):
    """Each step's sum of x over all earlier ones; see _sum_between for TERMS."""
    if TERMS == 2:
        total = tl.cumsum(x) - x
    else:
        row = tl.arange(0, x.shape[0])
        total = tl.sum(tl.where(row[:, None] > row[None, :], x[None, :], 0.0), axis=1)
    return total
''',
    "_dot_in_two": '''
@_jit
def _dot_in_two(x, y, PRECISION: tl.constexpr):
    """x @ y; beside bfloat16 in two terms: x as it is rounded, and what that cuts off."""
    if y.dtype == BFLOAT16:
        near = x.to(BFLOAT16)
        product = tl.dot((x - near.to(tl.float32)).to(BFLOAT16), y)
        product += tl.dot(near, y)
    else:
        product = tl.dot(x.to(y.dtype), y, input_precision=PRECISION)
    return product
''',
    "_column_sums": '''
@_jit
def _column_sums(x, weights, STORED: tl.constexpr):
    """tl.sum(x, axis=0) of products of tiles that were STORED so; of rows times `weights`, unless None. Of bfloat16 by
    a dot, which has them where other dots read these tiles, while tl.sum would have threads weigh them, and bring them
    into another order first; weights in two terms."""
    if STORED == BFLOAT16 and weights is None:
        alike = tl.dot(tl.full([16, x.shape[0]], 1.0, BFLOAT16), x.to(BFLOAT16))  # in each of 16 rows
        total = tl.max(alike, axis=0)
    elif STORED == BFLOAT16:
        near = weights.to(BFLOAT16)
        rest = (weights - near.to(tl.float32)).to(BFLOAT16)
        terms = tl.where(tl.arange(0, 16)[:, None] % 2 == 0, near[None, :], rest[None, :])  # eight rows of each
        total = tl.sum(tl.dot(terms, x.to(BFLOAT16)), axis=0) * 0.125
    else:
        total = tl.sum(x if weights is None else x * weights[:, None], axis=0)
    return total
''',
    "_row_products": '''
@_jit
def _row_products(x, y):
    """tl.sum(x * y, axis=1). Of bfloat16 as dots: threads would take longer to convert all that, and what nothing but
    dots reads lies in shared memory as dots like it."""
    return _dots_of_rows(x, y, "ieee") if x.dtype == BFLOAT16 else tl.sum(x.to(tl.float32) * y.to(tl.float32), axis=1)
''',
    "_dots_of_rows": '''
@_jit
def _dots_of_rows(x, y, PRECISION: tl.constexpr):
    """The diagonal of x @ y.T, 16 rows at a time. A dot sums in one order, which tl.sum does not: that goes by how
    Triton lays out a tile, so that the two runs of a kernel would differ in their last bits."""
    blocks: tl.constexpr = x.shape[0] // 16
    row = tl.arange(0, 16)
    diagonal = row[:, None] == row[None, :]
    y = y.reshape(blocks, 16, y.shape[1]).permute(0, 2, 1)
    products = tl.dot(x.reshape(blocks, 16, x.shape[1]), y, input_precision=PRECISION)
    return tl.sum(tl.where(diagonal[None, :, :], products, 0.0), axis=2).reshape(x.shape[0])
''',
    "_dealt": '''
@_jit
def _dealt(x, DOT: tl.constexpr, BACK: tl.constexpr):
    """x, its columns as Hopper's mma.sync deals those of a right operand to warps, eight in turn; BACK, as wgmma deals
    the rows of a sum: 16. A transposed sum then is an operand in the registers in which it is. (The interpreter has no
    warps.)"""
    WARPS: tl.constexpr = tl.extra.cuda.num_warps() if COMPILED else 2
    HOPPER: tl.constexpr = tl.target_info.cuda_capability_geq(9) if COMPILED else True
    LATER: tl.constexpr = tl.target_info.cuda_capability_geq(10) if COMPILED else False
    if HOPPER and not LATER and (DOT == BFLOAT16 or not COMPILED) and x.shape[1] % (16 * WARPS) == 0:
        eights = x.reshape(x.shape[0], x.shape[1] // (16 * WARPS), 2 if BACK else WARPS, WARPS if BACK else 2, 8)
        x = eights.permute(0, 1, 3, 2, 4).reshape(x.shape[0], x.shape[1])
    return x
''',
    "_depth": '''
@_jit
def _depth(gate, LIMIT: tl.constexpr):
    """How often to halve a chunk until the strongest log gate, in all rows of a block, comes to LIMIT nats at most."""
    strongest = -tl.min(gate.to(tl.float32))
    depth = 0
    for n in tl.static_range(0, 16):
        if (gate.shape[0] >> n) > 1:
            depth += (strongest * (gate.shape[0] >> n) > LIMIT).to(tl.int32)
    return depth
''',
    "_row_depths": '''
@_jit
def _row_depths(gate, since, LIMIT: tl.constexpr, MOST: tl.constexpr, LEVELS: tl.constexpr, BOUNDED: tl.constexpr):
    """The same for what each row reads, by rows up to it: never if its log gates `since` the chunk's start come to
    MOST nats at most; down to eight rows if the strongest would to LIMIT in these, as it does if BOUNDED; else LEVELS
    times."""
    row = tl.arange(0, gate.shape[0])
    strongest = -tl.min(gate.to(tl.float32), axis=1)
    strongest = tl.max(tl.where(row[:, None] >= row[None, :], strongest[None, :], 0.0), axis=1)
    deep = LEVELS - 3 if BOUNDED else tl.where(strongest * 8 > LIMIT, LEVELS, LEVELS - 3)
    return tl.where(-tl.min(since, axis=1) > MOST, deep, 0)
''',
    "_in_blocks": '''
@_jit
def _in_blocks(mask, depth, STRONG: tl.constexpr):
    """A mask [CHUNK, CHUNK] within the blocks of a chunk that is halved so often; where it never is, the mask."""
    if STRONG:
        block = tl.arange(0, mask.shape[0]) // (mask.shape[0] >> depth)
        mask = mask & (block[:, None] == block[None, :])
    return mask
''',
    "_exp": '''
@_jit
def _exp(x):
    """e to the x. GPUs have powers of 2; tl.exp adds to one what keeps results below 2**-126, which are 0 here."""
    return tl.exp(x) if x.dtype == tl.float64 else tl.exp2(x * 1.4426950408889634)
''',
    "_grow": '''
@_jit
def _grow(x):
    """e to the -x. The product that makes it a power of 2 is that in `_exp(x)`, of which it is the reciprocal."""
    return tl.exp(-x) if x.dtype == tl.float64 else tl.exp2(-(x * 1.4426950408889634))
''',
    "_raised": '''
@_jit
def _raised(x, SHIFTED: tl.constexpr):
    """e to the x; SHIFTED, 2**92 times that, which has the same digits as long as e to the x is a number itself."""
    y = x * 1.4426950408889634
    near = y > -100.0
    z = y + tl.where(near, 0.0, 92.0)
    return tl.exp2(z) * tl.where(near, 2.0**92, 1.0) if SHIFTED else _exp(x)
''',
    "_lowered": '''
@_jit
def _lowered(x, SHIFTED: tl.constexpr, share=1.0, MOST: tl.constexpr = None):
    """The reciprocal of `_raised(x, SHIFTED)`; times a share, which is 0 from MOST nats on, if that is given."""
    y = x * 1.4426950408889634
    near = y > -100.0
    z = y + tl.where(near, 0.0, 92.0)
    if MOST is not None:
        z = tl.maximum(z, -100.0)  # finite, for a share of 0
        x = tl.where(x < -MOST, -MOST, x)
    return tl.exp2(-z) * tl.where(near, 2.0**-92, share) if SHIFTED else _grow(x) * share
''',
    "_shrink": '''
@_jit
def _shrink(x):
    """e to the x, for a decay that meets growths, within bounds that were declared. Where those do not hold, and it
    would be 0, it is not a number, so that no result is wrong and looks right."""
    return _exp(x) if x.dtype == tl.float64 else tl.where(x < -87.0, float("nan"), _exp(x))
''',
    "_log1p": '''
@_jit
def _log1p(x):
    """log(1 + x) for x in [0, 1], in float64 by Kahan's form. In float32 x times a polynomial that glagen's developers
    fitted to log(1 + x) / x there (mpmath's Chebyshev fit, 10 terms): it is at most 2e-7 of the result off."""
    if x.dtype == tl.float64:
        u = 1.0 + x
        y = tl.where(u == 1.0, x, tl.log(u) * (x / tl.where(u == 1.0, 1.0, u - 1.0)))
    else:
        p = tl.fma(tl.fma(x, -0.003176057, 0.019542526), x, -0.05637361)
        p = tl.fma(tl.fma(p, x, 0.105436236), x, -0.15269667)
        p = tl.fma(tl.fma(p, x, 0.19663274), x, -0.24951616)
        p = tl.fma(tl.fma(p, x, 0.3332971), x, -0.49999893)
        y = x * tl.fma(p, x, 1.0)
    return y
''',
    "_softplus": """
@_jit
def _softplus(x):
    return tl.where(x < 0.0, 0.0, x) + _log1p(_exp(-tl.abs(x)))
""",
    "_expm1": '''
@_jit
def _expm1(x):
    """e to the x, less 1, in float64 by Kahan's form. In float32, within 1/2 of 0, x + x**2 times a polynomial that
    glagen's developers fitted there (mpmath's Chebyshev fit, 6 terms): it is at most 1e-7 of the result off."""
    if x.dtype == tl.float64:
        u = _exp(x)
        near = tl.where((u == 1.0) | (u == 0.0), 1.0, tl.log(u))
        y = tl.where(u == 1.0, x, tl.where(tl.abs(x) < 1.0, (u - 1.0) * (x / near), u - 1.0))
    else:
        p = tl.fma(tl.fma(x, 0.00019944874, 0.0013982186), x, 0.008333236)
        p = tl.fma(tl.fma(p, x, 0.041665792), x, 0.16666667)
        y = tl.where(tl.abs(x) < 0.5, tl.fma(x * x, tl.fma(p, x, 0.5), x), _exp(x) - 1.0)
    return y
''',
    "_tanh": '''
@_jit
def _tanh(x):
    """By exp(-2|x|) - 1, so that it has all its digits near 0 as well."""
    less = _expm1(-2.0 * tl.abs(x))
    y = -less / (2.0 + less)
    return tl.where(x < 0.0, -y, y)
''',
    "_power": """
@_jit
def _power(x, y):
    return _exp(y * tl.log(x))
""",
    "_whole_power": '''
@_jit
def _whole_power(x, N: tl.constexpr):
    """x to the N, a whole number above 0, whatever the sign of x."""
    y = x
    for _ in tl.static_range(N - 1):
        y = y * x
    return y
''',
}
HELPER_NEEDS = {
    "_sum_rows": ("_cut",),
    "_sum_between": ("_sum_rows", "_cut"),
    "_row_products": ("_dots_of_rows",),
    "_softplus": ("_log1p", "_exp"),
    "_expm1": ("_exp",),
    "_tanh": ("_expm1", "_exp"),
    "_raised": ("_exp",),
    "_lowered": ("_grow",),
    "_shrink": ("_exp",),
    "_power": ("_exp",),
}

# The same for the PyTorch form.
TWIN_HELPERS = {
    "_row_sums": '''
def _row_sums(select, x, axes):
    """Sums of a tile's rows, over the steps that `select` [CHUNK, CHUNK] gives each row."""
    select = select.to(x.dtype)
    return select @ x if axes == 2 else (select @ x[..., None])[..., 0]
''',
    "_depths": '''
def _depths(gate, limit):
    """How often to halve each chunk until the strongest log gate [B, H, chunks, CHUNK, columns], in all rows of a
    block, comes to `limit` nats at most."""
    strongest = -gate.amin((-2, -1), keepdim=True)
    return sum((rows * strongest > limit).long() for rows in (CHUNK >> n for n in range(CHUNK.bit_length() - 1)))
''',
    "_depths_by_row": '''
def _depths_by_row(gate, since, limit):
    """The same for what each row reads, by rows up to it: never if its log gates `since` the chunk's start come to
    `limit` nats at most, down to eight rows if the strongest would in these, else down to single rows."""
    strongest = -gate.amin(-1).cummin(-1).values
    deep = torch.where(strongest * 8 > limit, CHUNK.bit_length() - 1, CHUNK.bit_length() - 4)
    return torch.where(-since.amin(-1) > limit, deep, 0)
''',
    "_blockwise": '''
def _blockwise(mask, depths):
    """A mask [CHUNK, CHUNK] within the blocks of chunks that are halved so often."""
    block = torch.arange(CHUNK, device=mask.device) // (CHUNK >> depths)
    return mask & (block.mT == block)
''',
    "_per_head": '''
def _per_head(x):
    """[H, *] to [1, H, 1, *] in float32 (float64 stays)."""
    return x.to(torch.promote_types(x.dtype, torch.float32))[None, :, None]
''',
    "_clamp": '''
def _clamp(x):
    """Log gates, no lower than where their exponential is 0 anyway."""
    floor = -800.0 if x.dtype == torch.float64 else -128.0
    return torch.where(x < floor, floor, x)
''',
    "_unclamped": '''
def _unclamped(x):
    """1 where `_clamp` lets a log gate pass, 0 where it does not."""
    return (x >= (-800.0 if x.dtype == torch.float64 else -128.0)).to(x.dtype)
''',
    "_minimum": '''
def _minimum(x, y):
    """The smaller of two, either of which may be a number."""
    x, y = (z if isinstance(z, torch.Tensor) else torch.as_tensor(z, dtype=torch.float64) for z in (x, y))
    return torch.minimum(x, y.to(x)) if x.dim() else torch.minimum(x.to(y), y)
''',
}
