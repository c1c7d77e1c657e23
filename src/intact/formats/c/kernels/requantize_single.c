/* value * multiplier * 2^(shift - 31), rounded once, half up; shift is -31 to 30. */
static int32_t requantize_single(int32_t value, int32_t multiplier, int32_t shift)
{
    const int64_t half = (int64_t)1 << (30 - shift);
    return wrap(((int64_t)value * multiplier + half) >> (31 - shift));
}
