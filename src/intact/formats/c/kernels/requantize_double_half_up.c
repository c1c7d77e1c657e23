/* value * multiplier * 2^(shift - 31), rounded half up twice.
   A positive shift is to the left and comes before the product. */
static int32_t requantize_double_half_up(int32_t value, int32_t multiplier, int32_t shift)
{
    if (shift > 0) {
        return high_multiply(signed_bits((uint32_t)value << shift), multiplier);
    }
    const int64_t half = ((int64_t)1 << -shift) >> 1;
    return (int32_t)((high_multiply(value, multiplier) + half) >> -shift);
}
